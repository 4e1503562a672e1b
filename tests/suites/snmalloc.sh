# what: snmalloc's functional tests, built to use the C library's malloc
# source: crate snmalloc-sys 0.3.8
# needs: g++:g++
#
# It is the last version with this way of building them.

src=$SRC/snmalloc/src
build() { g++ -std=c++20 -O1 -w -mcx16 -DSNMALLOC_PASS_THROUGH -DSNMALLOC_USE_WAIT_ON_ADDRESS=1 -I"$src" "$src/test/func/$1"/*.cc -lpthread -latomic -o "$1"; }
names='first_operation malloc memcpy memory teardown thread_alloc_external'
export -f build
export src
printf '%s\n' $names | xargs -P2 -I{} bash -c 'build {}'
for name in $names; do echo "test $name: ./$name"; done
for path in "$src"/test/func/*; do
    name=${path##*/}
    [ -e "$name" ] || echo "leave $name (tests parts of snmalloc, and allocates nothing or from snmalloc's own heap)"
done
