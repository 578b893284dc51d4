"""The form of a module that XLA compiles says what is whole and what is cut, and where."""

from __future__ import annotations

from autoshard.export.runnable import runnable_module
from tests.export.compile_module import compile_text

WHOLE = "#sdy.sharding<@mesh, [{}, {}]>"
CUT = '#sdy.sharding<@mesh, [{"a"}, {}]>'
SLICED_AND_CUT = f"""
module @m attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["a"=4, "b"=2]>
  func.func public @main(%x: tensor<8x5xf32> {{sdy.sharding = {WHOLE}}})
      -> (tensor<8x5xf32> {{sdy.sharding = {WHOLE}}}, tensor<16x5xf32> {{sdy.sharding = {WHOLE}}},
          tensor<8x5xf32> {{sdy.sharding = {CUT}}}) {{
    %y = stablehlo.sine %x {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{}}]>]>}}
      : tensor<8x5xf32>
    %rows = stablehlo.slice %y [0:7, 0:5] {{
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{}}]>]>}}
      : (tensor<8x5xf32>) -> tensor<7x5xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %padded = stablehlo.pad %rows, %zero, low = [0, 0], high = [1, 0], interior = [0, 0] {{
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{}}]>]>}}
      : (tensor<7x5xf32>, tensor<f32>) -> tensor<8x5xf32>
    %both = stablehlo.concatenate %y, %x, dim = 0 {{
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{}}]>]>}}
      : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<16x5xf32>
    %piece = sdy.all_slice [{{"a"}}, {{}}] %y out_sharding=<@mesh, [{{"a"}}, {{}}]>
      : tensor<8x5xf32>
    return %padded, %both, %piece : tensor<8x5xf32>, tensor<16x5xf32>, tensor<8x5xf32>
  }}
}}"""


def test_what_is_sliced_whole_and_then_cut_is_not_cut_before_it_is_sliced() -> None:
    """Cut before, the rows and their tensor have shards of one size: XLA gathers the wrong ones."""
    compile_text(runnable_module(SLICED_AND_CUT), 8)


XORED_AND_CUT = f"""
module @m attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["a"=4, "b"=2]>
  func.func public @main(%x: tensor<8x5xi32> {{sdy.sharding = {WHOLE}}})
      -> (tensor<5xi32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}]>}},
          tensor<8x5xi32> {{sdy.sharding = {CUT}}}) {{
    %y = stablehlo.not %x {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{}}]>]>}}
      : tensor<8x5xi32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %rows = stablehlo.reduce(%y init: %zero) applies stablehlo.xor across dimensions = [0] {{
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}]>]>}}
      : (tensor<8x5xi32>, tensor<i32>) -> tensor<5xi32>
    %piece = sdy.all_slice [{{"a"}}, {{}}] %y out_sharding=<@mesh, [{{"a"}}, {{}}]>
      : tensor<8x5xi32>
    return %rows, %piece : tensor<5xi32>, tensor<8x5xi32>
  }}
}}"""


def test_what_no_all_reduce_computes_is_reduced_whole() -> None:
    """Cut, XLA reduces it on each device and refuses the all-reduce of an `xor` on host CPUs."""
    compile_text(runnable_module(XORED_AND_CUT), 8)
