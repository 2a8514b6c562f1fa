/*
 * bell.pml - nobody sleeps over a notice (bell.c).
 *
 * Two ranks, ROUNDS rounds. Each puts up its notice, then rings for whoever sleeps; then waits for the
 * other's notice, and sleeps where it is not there. A store goes into its rank's buffer first, and
 * from there to memory at any time later, in order: that is what x86 does, and the least that every
 * machine does. Who falls asleep fences all ranks (membarrier), one after another. Where it fences
 * itself only (-DOWN_FENCE) a rank sleeps for ever, which is an invalid end state; unless those who
 * ring fence themselves as well (-DEACH_FENCES).
 */
#define ROUNDS 3

byte notice[2], asleep[2], bell[2], sleepers;
chan buffer[2] = [4] of { bit, byte }; /* 0: notice, 1: asleep; the value */
byte ended;

#if defined(EACH_FENCES)
#define fence_ringer(me) empty(buffer[me])
#define fence_sleeper(me) empty(buffer[me])
#elif defined(OWN_FENCE)
#define fence_ringer(me) skip
#define fence_sleeper(me) empty(buffer[me])
#else
#define fence_ringer(me) skip
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
		:: what == 0 -> notice[me] = val
		:: else -> asleep[me] = val
		fi }
	:: atomic { ended == 2 && empty(buffer[me]) -> break }
	od
}

inline ring(me)
{
	fence_ringer(me);
	if
	:: sleepers > 0 ->
		if
		:: asleep[1 - me] -> bell[1 - me]++
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
		ring(me);
		do
		:: notice[1 - me] >= round -> break
		:: else ->
			seen = bell[me];
			buffer[me]!1, 1;
			sleepers++;
			fence_sleeper(me);
			if
			:: notice[1 - me] >= round
			:: else -> bell[me] != seen /* asleep */
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
