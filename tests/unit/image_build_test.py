#!/usr/bin/python3
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Unit tests of images/image_build.py (the installed workdir-image-build): no root, no network."""

import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
import unittest
from unittest import mock

TOP = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = TOP / "images" / "image_build.py"
spec = importlib.util.spec_from_file_location("image_build", PROGRAM)
ib = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(ib)

MINIMAL = 'suite = "bookworm"\npackages = ["git"]\n'


class Recipes(unittest.TestCase):
    def test_shipped_recipes_are_valid(self):
        recipes = sorted(TOP.glob("images/*/recipe.toml"))
        self.assertTrue(recipes)
        for path in recipes:
            with self.subTest(path=str(path)):
                recipe = ib.parse_recipe(path.read_text(encoding="utf-8"))
                self.assertTrue(recipe.description)
                self.assertIsNone(recipe.mirror)

    def test_base_has_what_is_promised(self):
        text = (TOP / "images/base/recipe.toml").read_text(encoding="utf-8")
        packages = ib.parse_recipe(text).packages
        for name in ("bash", "coreutils", "git", "curl", "ca-certificates", "python3", "procps",
                     "iproute2", "vim-tiny"):
            self.assertIn(name, packages)

    def test_defaults(self):
        recipe = ib.parse_recipe(MINIMAL)
        self.assertEqual(recipe.size, 2 << 30)
        self.assertEqual(recipe.locale, "C.UTF-8")
        self.assertEqual(recipe.components, ("main",))
        self.assertIsNone(recipe.user)

    def test_repeated_packages_count_once(self):
        recipe = ib.parse_recipe('suite = "sid"\npackages = ["git", "jq", "git"]\n')
        self.assertEqual(recipe.packages, ("git", "jq"))

    def test_bad_recipes(self):
        cases = {
            "not toml": ("suite = ", "recipe.toml"),
            "unknown key": (MINIMAL + "sise = 1\n", "unknown key 'sise'"),
            "no suite": ('packages = ["git"]\n', "suite is missing"),
            "no packages": ('suite = "bookworm"\n', "packages is missing"),
            "suite type": ('suite = 12\npackages = []\n', "suite must be a str"),
            "packages type": ('suite = "x"\npackages = "git"\n', "packages must be a list"),
            "package type": ('suite = "x"\npackages = [1]\n', "strings only"),
            "package option": ('suite = "x"\npackages = ["--mode=root"]\n', "cannot be a name"),
            "package comma": ('suite = "x"\npackages = ["a,b"]\n', "cannot be a name"),
            "suite option": ('suite = "--help"\npackages = []\n', "cannot be a suite"),
            "size": (MINIMAL + 'size = "2T"\n', "'2T'"),
            "size zero": (MINIMAL + 'size = "0G"\n', "'0G'"),
            "size small": (MINIMAL + 'size = "16M"\n', "256M"),
            "size large": (MINIMAL + 'size = "9999G"\n', "256G"),
            "locale": (MINIMAL + 'locale = "C; reboot"\n', "UTF-8 locale"),
            "mirror": (MINIMAL + 'mirror = "deb x"\n', "URL"),
            "mirror spaces": (MINIMAL + 'mirror = "http://a b"\n', "URL"),
            "user key": (MINIMAL + 'user = { name = "a", gid = 1 }\n', "unknown key 'gid'"),
            "user name": (MINIMAL + 'user = { name = "A b" }\n', "user.name"),
            "user uid": (MINIMAL + 'user = { name = "a", uid = 0 }\n', "user.uid"),
            "user bool": (MINIMAL + 'user = { name = "a", uid = true }\n', "user.uid"),
        }
        for name, (text, message) in cases.items():
            with self.subTest(name), self.assertRaises(ib.BuildError) as caught:
                ib.parse_recipe(text)
            self.assertIn(message, str(caught.exception))

    def test_sizes(self):
        self.assertEqual(ib.parse_size("512M"), 512 << 20)
        self.assertEqual(ib.parse_size("256G"), 256 << 30)
        for text in ("", "1", "G", "-1G", "1.5G", "1 G", "1g", "1GB", "1" * 30 + "G"):
            with self.subTest(text), self.assertRaises(ib.BuildError):
                ib.parse_size(text)


class Sources(unittest.TestCase):
    def test_a_debian_host(self):
        targets = [
            ("Debian", "http://mirror.example/debian"),
            ("Debian", "http://mirror.example/debian"),
            ("Debian-Security", "http://mirror.example/security"),
            ("Somebody", "http://other.example/apt"),
        ]
        key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        self.assertEqual(ib.debian_sources("bookworm", ("main", "contrib"), targets), [
            f"deb {key} http://mirror.example/debian bookworm main contrib",
            f"deb {key} http://mirror.example/debian bookworm-updates main contrib",
            f"deb {key} http://mirror.example/security bookworm-security main contrib",
        ])
        self.assertEqual(len(ib.debian_sources("sid", ("main",), targets)), 1)

    def test_another_host(self):
        self.assertIsNone(ib.debian_sources("bookworm", ("main",), [("Ubuntu", "http://x/u")]))
        self.assertIsNone(ib.debian_sources("bookworm", ("main",), []))

    def test_the_command(self):
        recipe = ib.parse_recipe(
            MINIMAL + 'locale = "de_DE.UTF-8"\nuser = { name = "agent", uid = 1234 }\n')
        command = ib.mmdebstrap_command(recipe, pathlib.Path("/s/root"), ["deb a", "deb b"], ["X;"])
        self.assertEqual(command[0], "mmdebstrap")
        self.assertIn("--mode=root", command)
        self.assertIn("--include=git,locales", command)
        self.assertIn("--aptopt=X;", command)
        self.assertEqual(command[-4:], ["bookworm", "/s/root", "deb a", "deb b"])
        self.assertTrue(any("--uid 1234 agent" in argument for argument in command))
        own = ib.parse_recipe(MINIMAL + 'mirror = "http://mirror.example/debian"\n')
        command = ib.mmdebstrap_command(own, pathlib.Path("/r"), None, [])
        self.assertEqual(command[-2:], ["/r", "http://mirror.example/debian"])

    def test_phases_only_go_forward(self):
        percents = [percent for _, percent, _ in ib.PHASES]
        self.assertEqual(percents, sorted(set(percents)))


class Trees(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.top = pathlib.Path(scratch.name)
        self.root = self.top / "root"
        self.root.mkdir()

    def recipe_dir(self):
        directory = self.top / "recipe"
        (directory / "overlay/etc").mkdir(parents=True)
        (directory / "recipe.toml").write_text(MINIMAL)
        (directory / "overlay/etc/motd").write_text("hello\n")
        return directory

    def test_the_hash_covers_everything(self):
        directory = self.recipe_dir()
        seen = {ib.recipe_hash(directory)}
        self.assertEqual({ib.recipe_hash(directory)}, seen)
        changes = [
            lambda: (directory / "overlay/etc/motd").write_text("hullo\n"),
            lambda: (directory / "overlay/etc/motd").chmod(0o755),
            lambda: (directory / "overlay/etc/motd").rename(directory / "overlay/etc/mote"),
            lambda: (directory / "overlay/etc/link").symlink_to("mote"),
            lambda: (directory / "recipe.toml").write_text(MINIMAL + "# x\n"),
        ]
        for change in changes:
            change()
            digest = ib.recipe_hash(directory)
            self.assertNotIn(digest, seen)
            seen.add(digest)

    def test_overlay_is_copied(self):
        directory = self.recipe_dir()
        (directory / "overlay/usr/bin").mkdir(parents=True)
        (directory / "overlay/usr/bin/tool").write_text("#!/bin/sh\n")
        (directory / "overlay/usr/bin/tool").chmod(0o700)
        (directory / "overlay/etc/alias").symlink_to("/nowhere")
        (self.root / "etc").mkdir()
        (self.root / "etc/motd").symlink_to("/etc/passwd")
        ib.apply_overlay(directory / "overlay", self.root)
        self.assertEqual((self.root / "etc/motd").read_text(), "hello\n")
        self.assertFalse((self.root / "etc/motd").is_symlink())
        self.assertEqual((self.root / "usr/bin/tool").stat().st_mode & 0o777, 0o755)
        self.assertEqual((self.root / "etc/motd").stat().st_mode & 0o777, 0o644)
        self.assertEqual(os.readlink(self.root / "etc/alias"), "/nowhere")

    def test_a_link_does_not_lead_out_of_the_root(self):
        directory = self.recipe_dir()
        outside = self.top / "outside"
        outside.mkdir()
        (self.root / "etc").symlink_to(outside)
        with self.assertRaisesRegex(ib.BuildError, "symbolic link"):
            ib.apply_overlay(directory / "overlay", self.root)
        with self.assertRaises((ib.BuildError, FileExistsError)):
            ib.put(self.root, "etc/hostname", "x")
        self.assertEqual(list(outside.iterdir()), [])

    def test_special_files_are_refused(self):
        directory = self.recipe_dir()
        os.mkfifo(directory / "overlay/etc/pipe")
        with self.assertRaisesRegex(ib.BuildError, "pipe"):
            ib.overlay_entries(directory / "overlay")

    def test_finish_tree(self):
        for path in ("etc/ssh", "etc/apt/apt.conf.d", "etc/dpkg/dpkg.cfg.d", "dev/pts", "tmp/x",
                     "var/lib/apt/lists", "var/cache/apt/archives", "var/log/apt",
                     "var/lib/dbus", "etc/default", "run"):
            (self.root / path).mkdir(parents=True)
        for path in ("etc/machine-id", "etc/ssh/ssh_host_rsa_key", "etc/apt/apt.conf.d/99mmdebstrap",
                     "var/lib/apt/lists/x_Packages", "var/cache/apt/archives/a.deb",
                     "var/log/dpkg.log", "var/log/apt/term.log", "var/lib/dbus/machine-id"):
            (self.root / path).write_text("left over")
        (self.root / "etc/resolv.conf").symlink_to("/run/resolv.conf")
        ib.finish_tree(self.root, ib.parse_recipe(MINIMAL))
        for path in ("etc/machine-id", "etc/resolv.conf", "etc/fstab"):
            self.assertEqual((self.root / path).read_bytes(), b"", path)
            self.assertFalse((self.root / path).is_symlink())
        self.assertEqual((self.root / "etc/hostname").read_text(), "sandbox\n")
        left = [str(path.relative_to(self.root)) for path in self.root.rglob("*")
                if path.is_file() and path.read_text() == "left over"]
        self.assertEqual(left, [])
        self.assertTrue((self.root / "var/lib/apt/lists/partial").is_dir())
        self.assertTrue((self.root / "workspace").is_dir())
        self.assertEqual(list((self.root / "dev").iterdir()), [])

    def test_installed_packages(self):
        status = self.root / "var/lib/dpkg/status"
        status.parent.mkdir(parents=True)
        status.write_text(
            "Package: zsh\nStatus: install ok installed\nVersion: 5.9-4\nDescription: x\n y\n\n"
            "Package: old\nStatus: deinstall ok config-files\nVersion: 1\n\n"
            "Package: bash\nStatus: install ok installed\nVersion: 5.2-1\n")
        self.assertEqual(ib.installed_packages(self.root), ["bash 5.2-1", "zsh 5.9-4"])

    def test_tree_size_counts_a_hard_link_once(self):
        (self.root / "a").write_bytes(b"x" * 5000)
        os.link(self.root / "a", self.root / "b")
        self.assertEqual(ib.tree_size(self.root), (8192, 1))


class Results(unittest.TestCase):
    def test_image_toml_can_be_read_back(self):
        values = {"name": 'a "quoted" \\ name\n☕', "size_bytes": 1 << 40, "packages": ["b 1", "c 2"],
                  "none": []}
        self.assertEqual(tomllib.loads(ib.image_toml(values)), values)

    def test_errors_name_cause_and_remedy(self):
        cause, remedy = ib.error_of(["x", "E: Unable to locate package gti", "E: apt failed"])
        self.assertEqual(cause, "E: Unable to locate package gti")
        self.assertIn("packages", remedy)
        cause, _ = ib.error_of(["I: fine", "E: first", "E: second"])
        self.assertEqual(cause, "E: first")
        self.assertEqual(ib.error_of([])[0], "no message")

    def test_the_size_of_the_file_system(self):
        command = ib.mke2fs_command("/root", "/out", 2 << 30)
        self.assertEqual(command[-1], "2097152k")
        self.assertIn("metadata_csum", " ".join(command))


class Program(unittest.TestCase):
    """The program itself, as far as it goes without root and network."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.top = pathlib.Path(scratch.name)
        (self.top / "images").mkdir()
        (self.top / "recipe").mkdir()
        (self.top / "recipe/recipe.toml").write_text(MINIMAL)

    def arguments(self, **changes):
        values = {"recipe": self.top / "recipe", "images-dir": self.top / "images", "name": "base",
                  "version": "1", "staging": self.top / "images/.staging"} | changes
        return [word for key, value in values.items() for word in (f"--{key}", str(value))]

    def fails(self, message, **changes):
        result = subprocess.run([sys.executable, "-B", PROGRAM, *self.arguments(**changes)],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        last = result.stderr.strip().splitlines()[-1]
        self.assertRegex(last, message)
        self.assertTrue(last.startswith("workdir-image-build: "))
        self.assertEqual(list((self.top / "images").glob(".staging*")), [])

    def test_clear_errors(self):
        self.fails("cannot read .*recipe.toml", recipe=self.top / "none")
        self.fails("image name", name="../x")
        self.fails("image name", name="n" * 300)
        self.fails("version", version="a/b")
        (self.top / "recipe/recipe.toml").write_text("nonsense = 1\n")
        self.fails("unknown key 'nonsense'")
        (self.top / "recipe/recipe.toml").write_bytes(b"\xff\xfe")
        self.fails("UTF-8")

    def test_an_existing_version_is_not_touched(self):
        (self.top / "images/base/1").mkdir(parents=True)
        self.fails("exists")

    @unittest.skipUnless(os.geteuid() == 0 and ib.shutil.which("mmdebstrap", path=ib.TOOL_PATH),
                         "needs root and mmdebstrap")
    def test_a_full_disk_is_seen_before_the_start(self):
        (self.top / "recipe/recipe.toml").write_text(MINIMAL)
        args = mock.Mock(recipe=self.top / "recipe", images_dir=self.top / "images", name="base",
                         version="1", staging=self.top / "images/.staging")
        args.name = "base"
        full = mock.Mock(f_bavail=10, f_frsize=4096)
        with mock.patch.object(ib.os, "statvfs", return_value=full):
            with self.assertRaisesRegex(ib.BuildError, "2560 MiB.* 0 MiB free; free some space"):
                ib.Builder(args).prepare()

    def test_progress_goes_to_the_notify_socket(self):
        args = mock.Mock(recipe="/r", images_dir="/i", staging="/s", version="1")
        args.name = "base"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(self.top / "notify"))
            listener.settimeout(5)
            with mock.patch.dict(os.environ, NOTIFY_SOCKET=str(self.top / "notify")):
                with mock.patch("builtins.print"):
                    ib.Builder(args).report(42, "installing packages")
            self.assertEqual(listener.recv(200), b"STATUS=42% installing packages")
        with mock.patch.dict(os.environ, NOTIFY_SOCKET=str(self.top / "gone")):
            with mock.patch("builtins.print"):
                ib.Builder(args).report(43, "nobody listens")

    def test_a_failed_tool_is_explained(self):
        args = mock.Mock(recipe="/r", images_dir="/i", staging=self.top, version="1")
        args.name = "base"
        builder = ib.Builder(args)
        with mock.patch("builtins.print"):
            with self.assertRaisesRegex(ib.BuildError, "sh failed .status 3.*No space left.*free"):
                builder.run(["sh", "-c", "echo 'dpkg: No space left on device'; exit 3"])
            with self.assertRaisesRegex(ib.BuildError, "no-such-tool is not installed"):
                builder.run(["no-such-tool"])

    def test_a_child_is_stopped_with_its_children(self):
        args = mock.Mock(recipe="/r", images_dir="/i", staging=self.top, version="1")
        args.name = "base"
        builder = ib.Builder(args)
        builder.child = subprocess.Popen(
            ["sh", "-c", "sleep 1000 & wait"], start_new_session=True)
        group = builder.child.pid
        builder.stop_child()
        with self.assertRaises(ProcessLookupError):
            deadline = ib.datetime.datetime.now() + ib.datetime.timedelta(seconds=10)
            while ib.datetime.datetime.now() < deadline:
                os.killpg(group, signal.SIGCONT)


if __name__ == "__main__":
    unittest.main()
