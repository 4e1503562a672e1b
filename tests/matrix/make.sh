# make -j with recipes that start programs: many children of make by vfork or posix_spawn, and a shell each.
set -e
export PATH=/usr/bin:/box
/box/busybox mkdir -p /tmp/make
cd /tmp/make
{
    echo 'FILES := $(foreach n,$(shell seq 1 40),part.$(n))'
    echo 'total: $(FILES)'
    printf '\t@cat $(FILES) | sort -n | awk "{ n += \\$$1 } END { print n }" > total\n'
    echo 'part.%:'
    printf '\t@x=$*; echo $$((x * x)) > $@\n'
} > Makefile
make -s -j4
read -r answer < total
[ "$answer" = 22140 ] && echo ok || { echo "FAIL: $answer"; exit 1; }
