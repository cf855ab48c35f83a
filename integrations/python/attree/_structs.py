"""Made from include/attree/attree.h by generate.py. Do not edit."""
from ctypes import Structure, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p

VERSION_MAJOR = 0
VERSION_MINOR = 1
VERSION_PATCH = 0
BLOCK_KEYS = 256
PANEL_KEYS = 16
CAUSAL = 1
USE_Q_OFFSET = 2
USE_SCALE = 4
K_PANELS = 16
STATES = 32
WEIGHTS = 64
WEIGHTS_BY_HEAD = 128
USE_WINDOW = 8
OK = 0
ERROR_NULL = 1
ERROR_SIZE = 2
ERROR_SHAPE = 3
ERROR_STRIDE = 4
ERROR_OVERFLOW = 5
ERROR_TYPE = 6
ERROR_VALUE = 7
ERROR_ALIGN = 8
ERROR_ALIAS = 9
ERROR_WORKSPACE = 10
ERROR_ISA = 11
ERROR_MEMORY = 12
ERROR_EMPTY = 13
ERROR_NONFINITE = 14
ERROR_UNFINISHED = 15
ERROR_CANCELLED = 16
F32 = 0
F16 = 1
BF16 = 2
I8 = 3
Q8_0 = 4
Q4_0 = 5
F8_E4M3 = 6
F8_E5M2 = 7
ISA_AUTO = 0
ISA_SCALAR = 1
ISA_AVX2 = 2
ISA_AVX512 = 3
ISA_NEON = 4
EMPTY_ZERO = 0
EMPTY_NAN = 1
EMPTY_ERROR = 2
MASK_BYTES = 0
MASK_BITS = 1
BLOCK_PARTIAL = 0
BLOCK_FULL = 1
BLOCK_SKIP = 2


class attree_strides(Structure):
    _fields_ = [
        ("batch", c_int64),
        ("head", c_int64),
        ("token", c_int64),
        ("width", c_int64),
    ]


class attree_pairs(Structure):
    _fields_ = [
        ("batches", c_int64),
        ("heads", c_int64),
        ("queries", c_int64),
        ("keys", c_int64),
        ("batch_stride", c_int64),
        ("head_stride", c_int64),
        ("query_stride", c_int64),
        ("key_stride", c_int64),
    ]


class attree_desc(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("batch", c_int64),
        ("q_heads", c_int64),
        ("kv_heads", c_int64),
        ("q_len", c_int64),
        ("kv_len", c_int64),
        ("qk_width", c_int64),
        ("v_width", c_int64),
        ("q", attree_strides),
        ("k", attree_strides),
        ("v", attree_strides),
        ("o", attree_strides),
        ("lse", attree_strides),
        ("q_type", c_int32),
        ("k_type", c_int32),
        ("v_type", c_int32),
        ("o_type", c_int32),
        ("flags", c_uint32),
        ("scale", c_float),
        ("q_offset", c_int64),
        ("empty_rows", c_int32),
        ("isa", c_int32),
        ("threads", c_int32),
        ("softcap", c_float),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("mask", attree_pairs),
        ("bias", attree_pairs),
        ("mask_kind", c_int32),
        ("bias_type", c_int32),
        ("kv_lens", c_void_p),
        ("q_offsets", c_void_p),
        ("q_starts", c_void_p),
        ("kv_starts", c_void_p),
        ("k_scales", attree_strides),
        ("v_scales", attree_strides),
        ("page_size", c_int64),
        ("page_count", c_int64),
        ("table_width", c_int64),
        ("shard_begin", c_int64),
        ("shard_end", c_int64),
        ("weights", attree_strides),
        ("key_weights", attree_strides),
        ("weights_type", c_int32),
        ("unused", c_int32),
    ]


class attree_score_tile(Structure):
    _fields_ = [
        ("scores", c_void_p),
        ("query_stride", c_int64),
        ("batch", c_int64),
        ("head", c_int64),
        ("first_query", c_int64),
        ("queries", c_int64),
        ("first_key", c_int64),
        ("keys", c_int64),
    ]


class attree_control(Structure):
    _fields_ = [
        ("done", c_int64),
        ("cancel", c_int32),
        ("unused", c_int32),
    ]


class attree_args(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("mask", c_void_p),
        ("bias", c_void_p),
        ("alibi_slopes", c_void_p),
        ("alibi_heads", c_int64),
        ("sinks", c_void_p),
        ("sink_heads", c_int64),
        ("score", c_void_p),
        ("block", c_void_p),
        ("user", c_void_p),
        ("k_scales", c_void_p),
        ("v_scales", c_void_p),
        ("page_table", c_void_p),
        ("states", c_void_p),
        ("control", c_void_p),
        ("weights", c_void_p),
        ("key_weights", c_void_p),
    ]


class attree_new_tokens(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_type", c_int32),
        ("v_type", c_int32),
        ("k_strides", attree_strides),
        ("v_strides", attree_strides),
        ("cache_k", c_void_p),
        ("cache_v", c_void_p),
        ("cache_k_scales", c_void_p),
        ("cache_v_scales", c_void_p),
        ("page_table", c_void_p),
    ]


STRUCTS = (attree_strides, attree_pairs, attree_desc, attree_score_tile, attree_control, attree_args, attree_new_tokens)
