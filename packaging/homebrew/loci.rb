# SPDX-License-Identifier: MIT
class Loci < Formula
  desc "Positional encodings for Transformers, fused into attention on the CPU"
  homepage "@HOME@"
  url "@URL@"
  sha256 "@SHA256@"
  license "MIT"

  depends_on "cmake" => :build
  depends_on "jansson"

  def install
    system "cmake", "-S", ".", "-B", "build", "-DLOCI_MPI=OFF", "-DLOCI_TESTS=OFF", "-DLOCI_EXAMPLES=OFF",
           *std_cmake_args
    system "cmake", "--build", "build"
    system "cmake", "--install", "build"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/loci version")
    (testpath/"test.c").write <<~C
      #include <stdio.h>
      #include <loci/loci.h>
      int main(void)
      {
          loci_desc d = LOCI_DESC(.encoding = "rope:pairing=half+alibi", .heads = 2, .dim = 8);
          loci_plan *plan;
          if (loci_plan_create(&plan, &d, NULL)) return 1;
          loci_plan_destroy(plan);
          puts(loci_version_text());
          return 0;
      }
    C
    system ENV.cc, "test.c", "-I#{include}", "-L#{lib}", "-lloci", "-o", "test"
    system "./test"
  end
end
