/* SPDX-License-Identifier: MIT */
/* Every task, in the order of tables and help. */
TASK(text)
TASK(flipflop)
TASK(recall)
TASK(copy)
TASK(copy1)
TASK(reverse)
TASK(add)
TASK(count)
TASK(selcopy)
TASK(passkey)
TASK(parity)
