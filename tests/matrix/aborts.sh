# Sections aborted at each of their numbered points. Kernel and C library have sections: nothing may be skipped.
for test in /units/inject-*; do
    $test abort --nocapture > /tmp/aborts 2>&1 || {
        echo "FAIL $(awk -v program="${test##*/}" -f /matrix/failed.awk /tmp/aborts)"
        exit 1
    }
    ! grep skipped /tmp/aborts || exit 1
done
echo ok
