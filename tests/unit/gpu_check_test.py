# SPDX-License-Identifier: Apache-2.0
"""What tools/gpu_check makes of compute-sanitizer's output: argument 1 is the folder of the tools."""
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv.pop(1))
from gpu_check_report import judgement_of_sanitizer  # noqa: E402: found by now

BANNER = "========= COMPUTE-SANITIZER\n"
RAN = "\n61 calls checked, 61 runs of them: 0 wrong\n"
CLEAN = "========= ERROR SUMMARY: 0 errors\n"
FINDINGS = {
    "memcheck": "========= Invalid __global__ write of size 4 bytes\n"
                "=========     at compensate(float *)+0x40\n"
                "=========     Address 0x7f is out of bounds\n"
                "========= ERROR SUMMARY: 1 error\n",
    "racecheck": "========= Error: Race reported between Write access at scan+0x10 and Read access at scan+0x20\n"
                 "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n",
    "a call of the runtime": "========= Program hit cudaErrorInvalidValue (error 1) due to \"invalid argument\" on CUDA "
                             "API call to cudaMemcpyAsync.\n========= ERROR SUMMARY: 1 error\n",
}
REFUSALS = [
    "========= Error: Device not supported. Please refer to the \"Supported Devices\" section of the sanitizer "
    "documentation\n",
    "========= Unable to find injection library libsanitizer-collection.so\n",
    "========= Error: Target application terminated before first instrumented API call\n",
    "========= Error: Failed to initialize WDDM debugger interface.\n========= Target application returned an error\n",
]
PARTIAL = ("========= Internal Sanitizer Error: The Sanitizer encountered an error while launching scan and didn't track "
           "the launch. Errors might go undetected. (Unable to allocate enough memory)\n")


class SanitizerTest(unittest.TestCase):
    def test_a_finding_is_wrong_whatever_else_is_printed(self):
        for name, finding in FINDINGS.items():
            for beside in ("", "Unable to pin 4 pages, using pageable memory\n", "peer access is not supported\n", PARTIAL,
                           *REFUSALS):
                with self.subTest(finding=name, beside=beside):
                    self.assertEqual(judgement_of_sanitizer(99, BANNER + beside + finding + RAN), "wrong")

    def test_its_status_alone_is_a_finding(self):
        self.assertEqual(judgement_of_sanitizer(99, BANNER + RAN), "wrong")

    def test_a_refusal_is_none_with_any_status(self):
        for refusal in (*REFUSALS, PARTIAL):
            for status in (0, 1, 99, 255):
                with self.subTest(refusal=refusal, status=status):
                    text = BANNER + refusal + "========= ERROR SUMMARY: 1 error\n" + RAN
                    self.assertEqual(judgement_of_sanitizer(status, text), "does not work here")

    def test_clean_is_ok_also_where_the_program_speaks_of_what_it_cannot_do(self):
        for beside in ("", "unable to raise the limit of locked memory\n", "graphs are not supported: left out\n"):
            self.assertEqual(judgement_of_sanitizer(0, BANNER + beside + RAN + CLEAN), "ok")

    def test_a_program_that_did_not_run_was_not_checked(self):
        self.assertEqual(judgement_of_sanitizer(0, BANNER + CLEAN), "does not work here")
        self.assertEqual(judgement_of_sanitizer(1, BANNER), "does not work here")
        self.assertEqual(judgement_of_sanitizer(127, "No such file or directory"), "does not work here")

    def test_the_clock_is_told(self):
        self.assertEqual(judgement_of_sanitizer(None, BANNER), "timeout")


if __name__ == "__main__":
    unittest.main()
