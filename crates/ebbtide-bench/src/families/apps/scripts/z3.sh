# z3 solves equations of 32 bits; $1 scales.
set -eu
echo "@watch $$"
exec z3 -in <<END
(set-option :smt.random_seed 1)
(set-option :sat.random_seed 1)
$(n=0
while [ $n -lt $((2 * $1)) ]; do
    echo "(push)(declare-const a$n (_ BitVec 32))(declare-const b$n (_ BitVec 32))"
    echo "(assert (= (bvmul a$n b$n) (_ bv$((39916801 + 1000 * n)) 32)))"
    echo "(assert (bvult (_ bv1 32) a$n))(assert (bvult a$n b$n))(assert (bvult b$n (_ bv100000 32)))"
    echo "(assert (= (bvurem (bvadd a$n b$n) (_ bv3 32)) (_ bv$((n % 3)) 32)))"
    echo "(check-sat)(pop)"
    n=$((n + 1))
done)
(echo "done $1")
END
