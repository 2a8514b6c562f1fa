/*
 * bell.pml - nobody sleeps over a notice (bell.c).
 *
 * Two ranks, ROUNDS rounds. Each puts up its notice, then rings for whoever sleeps; then waits for the
 * other's notice, and sleeps where it is not there. A store goes into its rank's buffer first, and
 * from there to memory at any time later, in order: that is what x86 does, and the least that every
 * machine does. A fence waits until the buffer is empty. Without the fences (-DWITHOUT_FENCES) a rank
 * sleeps for ever, which is an invalid end state.
 */
#define ROUNDS 3

byte notice[2], asleep[2], bell[2], sleepers;
chan buffer[2] = [4] of { bit, byte }; /* 0: notice, 1: asleep; the value */
byte ended;

#ifdef WITHOUT_FENCES
#define fence(me) skip
#else
#define fence(me) empty(buffer[me])
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
	fence(me);
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
			fence(me);
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
