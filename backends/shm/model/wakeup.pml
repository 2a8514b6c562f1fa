/*
 * wakeup.pml - proves that no rank sleeps while the flag it waits for is set (wakeup.c).
 *
 * Two ranks, ROUNDS rounds. Each sets its flag, then wakes the other if it sleeps; then it waits
 * for the other's flag, and sleeps if it is not set.
 *
 * A store enters its rank's buffer first, and reaches memory at any later time, in order, as on
 * x86; other machines reorder at least as much. A change of `sleepers` drains the buffer (fence),
 * both for a rank that falls asleep and for a rank that looks for sleepers. If the latter only
 * reads `sleepers` (-DONE_FENCE), a rank sleeps for ever: an invalid end state.
 */
#define ROUNDS 3

byte flag[2], asleep[2], wakeups[2], sleepers;
chan buffer[2] = [4] of { bit, byte }; /* 0: flag, 1: asleep; the value */
byte ended;

#define fence(me) empty(buffer[me])
#ifdef ONE_FENCE
#define fence_waker(me) skip
#else
#define fence_waker(me) fence(me)
#endif

proctype memory(bit me)
{
	bit what;
	byte val;

	do
	:: atomic { buffer[me]?what, val ->
		if
		:: what == 0 -> flag[me] = val
		:: else -> asleep[me] = val
		fi }
	:: atomic { ended == 2 && empty(buffer[me]) -> break }
	od
}

inline wake(me)
{
	fence_waker(me);
	if
	:: sleepers > 0 ->
		if
		:: asleep[1 - me] -> wakeups[1 - me]++
		:: else
		fi
	:: else
	fi
}

proctype rank(bit me)
{
	byte round = 1, seen;

	do
	:: round > ROUNDS -> break
	:: else ->
		buffer[me]!0, round;
		wake(me);
		do
		:: flag[1 - me] >= round -> break
		:: else ->
			seen = wakeups[me];
			buffer[me]!1, 1;
			sleepers++;
			fence(me);
			if
			:: flag[1 - me] >= round
			:: else -> wakeups[me] != seen /* asleep */
			fi;
			sleepers--;
			buffer[me]!1, 0
		od;
		round++
	od;
	ended++
}

init {
	atomic { run memory(0); run memory(1); run rank(0); run rank(1) }
}
