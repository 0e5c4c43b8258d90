# SPDX-License-Identifier: Apache-2.0
"""Starts the kernel parent (docs/protocol.md section 6). Thin on purpose: IPython takes the name
__main__ for the user's namespace."""
import sys

import thawbox_parent

sys.exit(thawbox_parent.main(sys.argv[1:]))
