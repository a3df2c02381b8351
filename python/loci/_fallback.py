# SPDX-License-Identifier: MIT
"""The warning of loci.sdpa() and loci.hf, which needs neither torch nor transformers."""


class FallbackWarning(UserWarning):
    """Warns that torch computed an attention that loci could not."""
