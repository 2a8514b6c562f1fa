/*
 * round.pml - proves that alternating slots are never written while a rank reads them (work.c).
 *
 * RANKS ranks, ROUNDS rounds. A rank writes its slot of the round's parity, sets its flag, waits
 * for all flags, then reads all slots, one after another, at its own pace. When all flags are set
 * it may already write to its slot of the next round, as sums do (staged.c). Each slot must contain
 * the data of the round, which fails with one slot (-DONE_SLOT). Two slots are the minimum; most
 * calls use more.
 */
#define RANKS 3
#define ROUNDS 4

#ifdef ONE_SLOT
#define slot(r, n) slots[(r) * 2]
#define early(n) 0
#else
#define slot(r, n) slots[(r) * 2 + (n) % 2]
#define early(n) (10 * ((n) + 1))
#endif

byte slots[6]; /* RANKS * 2 */
byte sums[6]; /* what is written early */
byte flag[3];

proctype rank(byte me)
{
	byte n = 1, r;

	do
	:: n > ROUNDS -> break
	:: else ->
		slot(me, n) = 0; /* half written */
		slot(me, n) = n;
		flag[me] = n;
		r = 0;
		do
		:: r == RANKS -> break
		:: r < RANKS && flag[r] >= n -> r++
		od;
		sums[me * 2 + (n + 1) % 2] = early(n);
		r = 0;
		do
		:: r == RANKS -> break
		:: r < RANKS ->
			assert(slot(r, n) == n);
			assert(n == 1 || early(n) == 0 || sums[r * 2 + n % 2] == 10 * n);
			r++
		od;
		n++
	od
}

init {
	atomic { run rank(0); run rank(1); run rank(2) }
}
