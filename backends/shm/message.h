/* message.h - send and recv between two ranks. */
#ifndef SHM_MESSAGE_H
#define SHM_MESSAGE_H

#include "state.h"

tess_status message_progress_all(struct group *g);

#endif
