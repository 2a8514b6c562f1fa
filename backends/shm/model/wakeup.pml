/*
 * wakeup.pml - no rank sleeps while its flag is set (wakeup.c).
 *
 * Two ranks, ROUNDS rounds. Each sets its flag, then wakes the other if it sleeps; then waits for the
 * other's flag, and sleeps where it is not set. A store goes into its rank's buffer first, and
 * from there to memory at any time later, in order: that is what x86 does, and the least that every
 * machine does. A rank that falls asleep fences all ranks (membarrier), one after another. Where it fences
 * itself only (-DOWN_FENCE) a rank sleeps for ever, which is an invalid end state; unless ranks that
 * wake others fence themselves as well (-DEACH_FENCES).
 */
#define ROUNDS 3

byte flag[2], asleep[2], wakeups[2], sleepers;
chan buffer[2] = [4] of { bit, byte }; /* 0: flag, 1: asleep; the value */
byte ended;

#if defined(EACH_FENCES)
#define fence_waker(me) empty(buffer[me])
#define fence_sleeper(me) empty(buffer[me])
#elif defined(OWN_FENCE)
#define fence_waker(me) skip
#define fence_sleeper(me) empty(buffer[me])
#else
#define fence_waker(me) skip
#define fence_sleeper(me) empty(buffer[me]); empty(buffer[1 - me])
#endif

/* A change of one word in memory: it empties the buffer on x86, but C does not promise that. */
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
			fence_sleeper(me);
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
