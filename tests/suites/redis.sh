# what: redis's tests of memory efficiency and of active defragmentation, on the C library's malloc
# source: debian redis
# needs: gcc:gcc make:make tclsh:tcl
# loaded: redis-server
# limit_s: 600

cp -r "$SRC" tree
make -j2 -C tree MALLOC=libc USE_SYSTEMD=no > make.log 2>&1 || { tail -1 make.log >&2; exit 1; }
for unit in unit/memefficiency unit/type/string unit/type/hash unit/expire unit/dump; do
    echo "test $unit: tree/runtest --single $unit --clients 1"
done
