"""Runs a few cases on the kernel built with AddressSanitizer and UndefinedBehaviorSanitizer; a report ends it."""

from tests.helpers import make_inputs
from tests.op_kernel.calls import call
from tests.op_kernel.test_toolchains import _CASES
from toptheta_host_model import kernel_for

if __name__ == "__main__":
    for case in _CASES:
        kernel = kernel_for(case.torch_dtype, sanitize=True, flags=("-O1",))  # -O2 takes minutes to compile
        for cube in (True, False):
            call(make_inputs(case).arguments, cores=4, cube=cube, kernel=kernel).run.require_clean()
        print(case.id)
