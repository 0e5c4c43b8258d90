# SPDX-License-Identifier: Apache-2.0
"""Starts the kernel parent (docs/protocol.md section 6). Thin on purpose: IPython takes the name
__main__ for the user's namespace."""
import faulthandler
import sys

import thawbox_parent

faulthandler.enable()  # a crash in C code says where, on the console or in the cell's stderr

sys.exit(thawbox_parent.main(sys.argv[1:]))
