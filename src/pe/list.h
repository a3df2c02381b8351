/* SPDX-License-Identifier: MIT */
/* Every encoding, in the order in which people read them. */
PE(nope)
PE(sinusoidal)
PE(learned)
PE(alibi)
PE(t5)
PE(rope)
PE(fox)
PE(shaw)
PE(cope)
PE(sba)
PE(cape)
