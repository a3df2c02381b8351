# SPDX-License-Identifier: MIT
"""The folder of flash-attn that has the rotation by tables."""
