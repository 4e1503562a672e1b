# git gc packs a repository of some thousand versions of files; $1 scales.
set -eu
dir=$(mktemp -d)
trap 'exit 143' HUP INT TERM
trap 'rm -rf "$dir"' EXIT
export GIT_CONFIG_NOSYSTEM=1 HOME="$dir"
cd "$dir"
quiet() { env -u LD_PRELOAD "$@"; }
quiet git init -q -b main .
quiet awk -v commits=$((200 * $1)) 'BEGIN {
    for (c = 1; c <= commits; c++) {
        text = ""
        for (l = 0; l < 200; l++) text = text "line " l " of version " (l % 40 == c % 40 ? c : int(c / 40)) " " l * c % 9973 "\n"
        printf "blob\nmark :%d\ndata %d\n%s\n", 2 * c, length(text), text
        printf "commit refs/heads/main\nmark :%d\ncommitter a <a@b> %d +0000\ndata 4\nnext\n", 2 * c + 1, 1000000 + c
        if (c > 1) printf "from :%d\n", 2 * c - 1
        printf "M 100644 :%d file%d\n\n", 2 * c, c % 20
    }
}' | quiet git fast-import --quiet
git -c pack.threads=2 -c pack.window=20 -c gc.autoDetach=false gc -q --prune=now --aggressive
quiet git fsck --no-progress >/dev/null
echo "done $(quiet git rev-list --all --objects | wc -l)"
