#!/usr/bin/python3
"""wd's help, its man page and its completions name the same verbs and options.

WD: the program. The sources of the others are found from this file. Help also fits 80 columns, goes
to stdout and exits 0. The D-Bus page names what the XML names.
"""

import os
import pathlib
import re
import subprocess
import unittest
import xml.etree.ElementTree

TOP = pathlib.Path(__file__).resolve().parents[2]
WD = os.environ["WD"]
COMPLETIONS = TOP / "cli" / "completions"


def wd(*args):
    return subprocess.run([WD, *args], capture_output=True, text=True, timeout=60, check=False,
                          stdin=subprocess.DEVNULL)


def verbs_of(text):
    block = text.split("Verbs:\n", 1)[1].split("\n\n", 1)[0]
    return {line.split()[0] for line in block.splitlines()}


def options_of(help_text):
    """Long options of a help text, with their short form: {"--quiet": "-q"}."""
    found = {}
    for line in help_text.splitlines():
        match = re.match(r"  (?:(-\w), )?(--[\w-]+)", line)
        if match:
            found[match[2]] = match[1]
    return found


TOP_HELP = wd("--help").stdout
VERBS = verbs_of(TOP_HELP)
IMAGE_VERBS = verbs_of(wd("image", "--help").stdout)
# "image build" and so on have options of their own; help takes a verb and no options.
ALL = {v: wd(*v.split(), "--help") for v in
       sorted(VERBS - {"image", "help"}) + [f"image {v}" for v in sorted(IMAGE_VERBS)]}
OPTIONS = {verb: options_of(help.stdout) for verb, help in ALL.items()}


class Help(unittest.TestCase):
    def test_it_fits_and_goes_to_stdout(self):
        for args in [[], ["image"], *[v.split() for v in ALL]]:
            for words in (args + ["--help"], ["help"] + args):
                shown = wd(*words)
                with self.subTest(words):
                    self.assertEqual((shown.returncode, shown.stderr), (0, ""))
                    self.assertLessEqual(max(map(len, shown.stdout.splitlines())), 80)

    def test_there_is_something_to_compare(self):
        self.assertGreater(len(VERBS), 8)
        self.assertTrue(all("--help" in options for options in OPTIONS.values()))

    def test_errors_do_not_dump_help(self):
        for words in ([], ["nonsense"], ["create", "--nonsense"], ["rm"], ["exec"], ["image"]):
            shown = wd(*words)
            with self.subTest(words):
                self.assertEqual(shown.returncode, 125 if words == ["exec"] else 2)
                self.assertEqual(shown.stdout, "")
                self.assertEqual(len(shown.stderr.splitlines()), 1)
                self.assertTrue(shown.stderr.startswith("wd: "))


class Manual(unittest.TestCase):
    page = (TOP / "man" / "wd.1.rst").read_text()

    def section(self, verb):
        match = re.search(rf"^{re.escape(verb)}\n-+\n(.*?)(?=^[\w ]+\n[-=]+\n)", self.page,
                          re.M | re.S)
        self.assertIsNotNone(match, f"no section on {verb}")
        return match[1]

    def test_it_has_every_verb_and_no_other(self):
        body = self.page.split("VERBS\n=====", 1)[1].split("OPTIONS\n=======", 1)[0]
        self.assertEqual(set(re.findall(r"^([a-z ]+)\n-+$", body, re.M)), set(ALL) | {"help"})

    def test_it_has_every_option_and_no_other(self):
        for verb, options in OPTIONS.items():
            with self.subTest(verb):
                listed = {}
                for match in re.finditer(r"^(?:(-\w), )?(--[\w-]+)", self.section(verb), re.M):
                    listed[match[2]] = match[1]
                wanted = {k: v for k, v in options.items() if k != "--help"}
                self.assertEqual(listed, wanted)


class Completions(unittest.TestCase):
    def check_all(self, named, file):
        """named(verb): the long options that the file has for it."""
        for verb, options in OPTIONS.items():
            with self.subTest(f"{file}: {verb}"):
                self.assertEqual(named(verb) | {"--help"}, set(options))

    def test_bash(self):
        text = (COMPLETIONS / "wd.bash").read_text()
        self.assertEqual(set(re.search(r'local verbs="(.*?)"', text)[1].split()), VERBS)
        self.assertEqual(set(re.search(r'local image_verbs="(.*?)"', text)[1].split()), IMAGE_VERBS)
        branches = {}
        outer, inner = text.split("case $verb in", 1)[1], text.split("case ${words[2]} in", 1)[1]
        for source, prefix in ((inner.split("esac", 1)[0], "image "),
                               (outer.split("case ${words[2]} in")[0] + outer.split("esac", 1)[1],
                                "")):
            for match in re.finditer(r"^\s+([a-z| ]+)\)(.*?);;", source, re.M | re.S):
                for verb in match[1].split("|"):
                    branches[prefix + verb.strip()] = set(re.findall(r"--[\w-]+", match[2]))
        self.check_all(lambda verb: branches.get(verb, set()), "wd.bash")

    def test_zsh(self):
        text = (COMPLETIONS / "_wd").read_text()
        main, image = text.split("_wd() {", 1)[1], text.split("_wd_image() {", 1)[1]
        self.assertEqual(set(re.findall(r"^        ['\"]([a-z]+):",
                                        text.split("_wd_verbs() {", 1)[1].split("}", 1)[0], re.M)),
                         VERBS)
        branches = {}
        for source, prefix in ((image.split("_wd() {")[0], "image "), (main, "")):
            body = source.split("case $verb in", 1)[1]
            for match in re.finditer(r"^\s+([a-z| ]+)\)\n(.*?);;", body, re.M | re.S):
                for verb in match[1].split("|"):
                    branches[prefix + verb.strip()] = set(re.findall(r"(--[\w-]+)[\['}]", match[2]))
        self.check_all(lambda verb: branches.get(verb, set()), "_wd")

    def test_fish(self):
        text = (COMPLETIONS / "wd.fish").read_text()
        self.assertEqual(set(re.findall(r"-n __wd_no_verb -a (\w+)", text)), VERBS)
        self.assertEqual(set(re.findall(r"-n __wd_no_image_verb -a (\w+)", text)), IMAGE_VERBS)
        for verb, options in OPTIONS.items():
            with self.subTest(f"wd.fish: {verb}"):
                named = {}
                for line in re.findall(rf"-n '__wd_verb {verb}' -l (.*)", text):
                    short = re.search(r"-s (\w)", line)
                    named["--" + line.split()[0]] = f"-{short[1]}" if short else None
                wanted = {k: v for k, v in options.items() if k != "--help"}
                self.assertEqual(named, wanted)


class DBusPage(unittest.TestCase):
    page = (TOP / "man" / "dev.workdir1.5.rst").read_text()

    def test_it_names_what_the_contract_names(self):
        for file in sorted((TOP / "src" / "daemon" / "service").glob("*.xml")):
            for interface in xml.etree.ElementTree.parse(file).getroot().iter("interface"):
                name = interface.get("name").rsplit(".", 1)[1]
                section = re.search(rf"^{name.upper()}\n=+\n(.*?)(?=^[A-Z]+\n=+\n)", self.page,
                                    re.M | re.S)
                self.assertIsNotNone(section, name)
                for method in [*interface.iter("method"), *interface.iter("signal")]:
                    signature = {"in": [], "out": []}
                    for arg in method.iter("arg"):
                        signature[arg.get("direction", "in")].append(
                            f"{arg.get('type')} *{arg.get('name')}*")
                    line = f"{method.get('name')} ({', '.join(signature['in'])})"
                    if signature["out"]:
                        line += f" → ({', '.join(signature['out'])})"
                    with self.subTest(f"{name}.{method.get('name')}"):
                        self.assertIn("\n" + line + "\n", section[1])
                for prop in interface.iter("property"):
                    with self.subTest(f"{name}.{prop.get('name')}"):
                        self.assertIn(f"*{prop.get('name')}* {prop.get('type')}", section[1])


if __name__ == "__main__":
    unittest.main()
