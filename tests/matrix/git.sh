# A repository with history: add, commit, branch, merge, pack, clone. The hash of a tree is known beforehand.
set -e
export PATH=/usr/bin:/box HOME=/tmp/git GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
/box/busybox mkdir -p /tmp/git
cd /tmp/git
git init -q one
cd one
git symbolic-ref HEAD refs/heads/main
for n in 1 2 3 4 5 6 7 8; do
    /box/busybox seq 1 $((n * 500)) > "file.$n"
    git add .
    git commit -q -m "commit $n"
done
git checkout -q -b side HEAD~3
echo side > side
git add side
git commit -q -m side
git checkout -q main
git merge -q -m merge side
git gc -q
git fsck --no-progress
cd ..
git clone -q one two
answer="$(git -C two rev-parse 'HEAD^{tree}') $(git -C two rev-list --count HEAD) $(git -C two log --format=%s -1)"
[ "$answer" = "84b8aefaf10e2c6876a77d7ad3390f60f5e8b687 10 merge" ] && echo ok || { echo "FAIL: $answer"; exit 1; }
