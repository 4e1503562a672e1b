# what: the Linux Test Project's tests of mallinfo, mallinfo2 and mallopt
# source: debian ltp

echo 'its source can be had now: write here how its tests are built' >&2
exit 1
