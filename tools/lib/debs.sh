# shellcheck shell=sh
# Shares downloaded packages between roots and boxes: hard links (copies where that fails) from
# and to a cache directory. Nobody runs apt on the cache itself, so two of them never meet at
# apt's lock. Plain sh: mmdebstrap's hooks source it as well.

debs_out() { # CACHE DIRECTORY
    mkdir -p "$1" "$2"
    find "$1" -maxdepth 1 -name '*.deb' -exec ln -ft "$2" {} + 2>/dev/null ||
        find "$1" -maxdepth 1 -name '*.deb' -exec cp -t "$2" {} +
}

debs_in() { # CACHE DIRECTORY
    mkdir -p "$1"
    [ -d "$2" ] || return 0
    # Linked under another name and renamed, so that a copy is never seen half.
    find "$2" -maxdepth 1 -name '*.deb' | while read -r f; do
        [ -e "$1/${f##*/}" ] && continue
        cp -l "$f" "$1/.$$.tmp" 2>/dev/null || cp "$f" "$1/.$$.tmp"
        mv "$1/.$$.tmp" "$1/${f##*/}"
    done
}
