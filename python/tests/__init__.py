# SPDX-License-Identifier: MIT
"""Problems are small: threads of torch would only wait for each other, the longer the busier the machine."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
