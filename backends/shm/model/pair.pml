/*
 * pair.pml - proves that pieces of messages arrive complete and in order (message.c).
 *
 * The sender writes piece n to place n % 2 when fewer than WINDOW are in flight, then counts it.
 * The receiver reads a counted piece, then counts it as taken. With a window of three (-DWINDOW=3)
 * a piece is overwritten before it is read.
 */
#ifndef WINDOW
#define WINDOW 2
#endif
#define PIECES 6

byte place[2], sent, taken;

active proctype sender()
{
	do
	:: sent == PIECES -> break
	:: sent < PIECES && sent - taken < WINDOW ->
		place[sent % 2] = 255; /* half written */
		place[sent % 2] = sent;
		sent = sent + 1
	od
}

active proctype receiver()
{
	do
	:: taken == PIECES -> break
	:: sent > taken ->
		assert(place[taken % 2] == taken);
		assert(place[taken % 2] == taken); /* reading takes a while */
		taken = taken + 1
	od
}
