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
    [ ! -e "$name" ] || continue
    case $name in
        bits) own="its arithmetic of bits, and no allocation" ;;
        cheri) own="for CHERI processors only" ;;
        client_meta) own="data of a program that snmalloc keeps beside its objects" ;;
        domestication) own="how snmalloc checks its own pointers" ;;
        external_pagemap | pagemap) own="snmalloc's map of pages" ;;
        fixed_region) own="a heap of snmalloc in a given range" ;;
        jemalloc) own="jemalloc's functions that are not the C library's" ;;
        memory_usage | statistics) own="snmalloc's figures" ;;
        miracle_ptr) own="counts of references that snmalloc keeps beside its objects" ;;
        pool) own="snmalloc's pool of allocators" ;;
        redblack) own="snmalloc's tree" ;;
        release-rounding | sizeclass) own="snmalloc's size classes, and no allocation" ;;
        sandbox) own="switched off by snmalloc" ;;
        two_alloc_types) own="two kinds of snmalloc in a process" ;;
        *) echo "unknown test $name" >&2; exit 1 ;;
    esac
    echo "leave $name ($own)"
done
