# The unit tests of the crates that use the kernel. They have an allocator of their own.
# Linux 6.1 to 6.5 leave some huge pages out of smaps_rollup, those scanned for balancing between nodes. One of the
# tests compares with that file.
[ ! -e /proc/sys/kernel/numa_balancing ] || echo 0 > /proc/sys/kernel/numa_balancing
for test in /units/unit-*; do
    $test --test-threads=4 > /tmp/units 2>&1 || { grep . /tmp/units; exit 1; }
done
echo ok
