"""Runs an example of `examples/agents` as it is, but for how soon another replica gets the calls of a dead one."""

import runpy
import sys

from turnstile.sdk.tools.service import ToolService

assert ToolService.__init__.__kwdefaults__ is not None
ToolService.__init__.__kwdefaults__ |= {"ack_wait_seconds": 2}
example = sys.argv.pop(1)
sys.argv[0] = example
runpy.run_path(example, run_name="__main__")
