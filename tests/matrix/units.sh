# The unit tests of the crates that use the kernel. They have an allocator of their own.
# Linux 6.1 to 6.5 leave some huge pages out of smaps_rollup, those scanned for balancing between nodes. One of the
# tests compares with that file.
[ ! -e /proc/sys/kernel/numa_balancing ] || echo 0 > /proc/sys/kernel/numa_balancing
# The core's tests count frames of 4 KiB, which only kernels with such pages release one by one.
left=
grep -q 'KernelPageSize: *4 kB' /proc/self/smaps || left=/units/unit-ebbtide_core
failed=
for test in /units/unit-*; do
    [ "$test" = "$left" ] && continue
    $test --test-threads=4 > /tmp/units 2>&1 ||
        failed="$failed $(awk -v program="${test##*/}" -f /matrix/failed.awk /tmp/units)"
done
if [ "$failed" ]; then
    echo "FAIL$failed"
    exit 1
elif [ "$left" ]; then
    echo 'skipped: the unit tests of ebbtide-core count frames of 4 KiB; the others passed'
else
    echo ok
fi
