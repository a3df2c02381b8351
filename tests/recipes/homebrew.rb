# SPDX-License-Identifier: MIT
# Runs a formula without Homebrew: unpacks the archive, installs to a prefix and runs the test.
#     ruby homebrew.rb FORMULA ARCHIVE PREFIX [CMAKE_ARGUMENT...]
require "digest"
require "fileutils"
require "pathname"
require "tmpdir"

$formula, $archive, prefix, *$arguments = ARGV
$prefix = Pathname(prefix).expand_path
$archive = File.expand_path($archive)

class Formula
  %i[desc homepage url sha256 license].each do |name|
    define_singleton_method(name) do |value = nil|
      instance_variable_set("@#{name}", value) if value
      instance_variable_get("@#{name}")
    end
  end

  def self.depends_on(what) = (@needs ||= []) << what
  def self.test(&block) = define_method(:run_test, &block)

  def prefix = $prefix
  def bin = $prefix/"bin"
  def lib = $prefix/"lib"
  def include = $prefix/"include"
  def testpath = Pathname(Dir.pwd)
  def version = self.class.url[%r{/loci-([0-9.]+)\.tar\.gz$}, 1] || raise("the URL has no version: #{self.class.url}")
  def std_cmake_args = %W[-DCMAKE_INSTALL_PREFIX=#{$prefix} -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_BUILD_TYPE=Release] + $arguments
  def system(*command) = Kernel.system(*command) || raise("#{command.join(' ')} failed")
  def shell_output(command) = `#{command}`.tap { $?.success? || raise("#{command} failed") }
  def assert_match(text, output) = output.include?(text) || raise("#{output} has no #{text}")
end

module Compiler
  def cc = "cc"
end
ENV.extend(Compiler)
ENV["LD_LIBRARY_PATH"] = "#{$prefix}/lib"
ENV["CMAKE_BUILD_PARALLEL_LEVEL"] ||= `nproc`.strip

load File.expand_path($formula)
formula = Loci.new
%i[desc homepage url sha256 license].each { |name| Loci.public_send(name) || raise("the formula has no #{name}") }
Digest::SHA256.file($archive).hexdigest == Loci.sha256 || raise("the formula has another sum than #{$archive}")
Dir.mktmpdir do |work|
  Dir.chdir(work) do
    formula.system "tar", "-xzf", $archive
    Dir.chdir("loci-#{formula.version}") { formula.install }
    FileUtils.mkdir "test"
    Dir.chdir("test") { formula.run_test } if File.exist?(formula.bin/"loci")
  end
end
File.exist?(formula.bin/"loci") || ENV["RECIPES_DRY"] || raise("the formula installed no program")
