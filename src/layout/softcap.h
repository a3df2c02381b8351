/* SPDX-License-Identifier: MIT */
/* softcap.h -- the option of softcap that its term reads. */
#ifndef LOCI_LAYOUT_SOFTCAP_H
#define LOCI_LAYOUT_SOFTCAP_H

enum { SOFTCAP_CAP };

#endif
