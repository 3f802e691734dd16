"""Which functions of DuckDB a step may call: those whose value is that of their arguments alone.

What is not listed is refused, so that what a later DuckDB brings is refused until it was looked
at. A window that runs again gives the same only because of this: nothing here reads the clock, a
random number, the session, its settings, the catalogue or a file. What DuckDB itself says of a
function (``stability``) is asked besides and is not enough: it calls ``current_localtime`` and
``version`` consistent.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPERATORS = _words(
    """
% & && * ** + - ->> / // <-> << <=> <@ >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~ !~~ !~~* !__postfix
< <= = != > >=
"""
)

FUNCTIONS = _words(
    """
abs acos acosh add age aggregate alias apply array_aggr array_aggregate array_append array_apply
array_cat array_concat array_contains array_cosine_distance array_cosine_similarity
array_cross_product array_distance array_distinct array_dot_product array_extract array_filter
array_grade_up array_has array_has_all array_has_any array_indexof array_inner_product
array_intersect array_length array_negative_dot_product array_negative_inner_product
array_pop_back array_pop_front array_position array_prepend array_push_back array_push_front
array_reduce array_resize array_reverse array_reverse_sort array_select array_slice array_sort
array_to_json array_to_string array_to_string_comma_default array_transform array_unique
array_value array_where array_zip ascii asin asinh assert_true atan atan2 atanh bar base64 bin
bit_count bit_length bit_position bitstring cardinality cast_to_type cbrt ceil ceiling century
char_length character_length chr concat concat_ws contains cos cosh cot create_sort_key
damerau_levenshtein date_add date_diff date_part date_sub date_trunc datediff datepart datesub
datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade decode degrees divide
editdist3 element_at encode ends_with enum_code enum_first enum_last enum_range
enum_range_boundary epoch epoch_ms epoch_ns epoch_us equi_width_bins era error even exp
factorial fdiv filter flatten floor fmod format format_bytes formatreadabledecimalsize
formatreadablesize from_base64 from_binary from_hex from_json from_json_strict gamma gcd
generate_series get_bit grade_up greatest greatest_common_divisor hamming hash hex hour
icu_sort_key if ilike_escape instr invoke isfinite isinf isnan isodow isoyear jaccard
jaro_similarity jaro_winkler_similarity json json_array json_array_length json_contains
json_deep_merge json_exists json_extract json_extract_path json_extract_path_text
json_extract_string json_insert json_keys json_merge_patch json_merge_patch_diff json_normalize
json_object json_pretty json_quote json_remove json_replace json_set json_strip_nulls
json_structure json_transform json_transform_strict json_type json_valid json_value julian
last_day lcase lcm least least_common_multiple left left_grapheme len length length_grapheme
levenshtein lgamma like_escape list_aggr list_aggregate list_any_value list_append list_apply
list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor list_bool_and
list_bool_or list_cat list_concat list_contains list_cosine_distance list_cosine_similarity
list_count list_distance list_distinct list_dot_product list_element list_entropy list_extract
list_filter list_first list_grade_up list_has list_has_all list_has_any list_histogram
list_indexof list_inner_product list_intersect list_kurtosis list_kurtosis_pop list_last
list_mad list_max list_median list_min list_mode list_negative_dot_product
list_negative_inner_product list_pack list_position list_prepend list_product list_reduce
list_resize list_reverse list_reverse_sort list_select list_sem list_skewness list_slice
list_sort list_stddev_pop list_stddev_samp list_string_agg list_sum list_transform list_unique
list_value list_var_pop list_var_samp list_where list_zip ln log log10 log2 lower lpad ltrim
make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz map
map_concat map_contains map_contains_entry map_contains_value map_entries map_extract
map_extract_value map_from_entries map_keys map_values md5 md5_number md5_number_lower
md5_number_upper microsecond millennium millisecond minute mismatches mod month monthname
multiply nanosecond nextafter nfc_normalize normalized_interval not_ilike_escape not_like_escape
nullif octet_length ord overlay parse_dirname parse_dirpath parse_filename parse_formatted_bytes
parse_path path_join pi position pow power prefix printf quarter radians range reduce
regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace
regexp_split_to_array repeat replace reverse right right_grapheme round round_even roundbankers
row row_to_json rpad rtrim second set_bit sha1 sha256 sign signbit sin sinh split split_part
sqrt starts_with str_split str_split_regex strftime string_split string_split_regex
string_to_array strip_accents strlen strpos strptime struct_concat struct_contains
struct_extract struct_extract_at struct_has struct_indexof struct_insert struct_keys struct_pack
struct_position struct_update struct_values substr substring substring_grapheme subtract suffix
switch tan tanh time_bucket timezone timezone_hour timezone_minute to_base to_base64 to_binary
to_centuries to_days to_decades to_hex to_hours to_json to_microseconds to_millennia
to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years
translate trim trunc try_strptime typeof ucase unbin unhex unicode union_extract union_tag
union_value upper url_decode url_encode uuid_extract_timestamp uuid_extract_version
variant_array_length variant_contains variant_exists variant_extract variant_extract_string
variant_keys variant_type variant_typeof week weekday weekofyear xor year yearweek
"""
)
"""Scalar functions, and macros that are made of them alone."""

BY_NAME = _words("aggregate array_aggr array_aggregate list_aggr list_aggregate")
"""Those that compute over the elements of a list what their second argument names."""

OF_ELEMENTS = _words(
    """
any_value approx_count_distinct arg_max arg_min avg bit_and bit_or bit_xor bool_and bool_or count
entropy first histogram kurtosis kurtosis_pop last mad max median min mode product quantile_cont
quantile_disc sem skewness stddev_pop stddev_samp string_agg sum var_pop var_samp
"""
)
"""What those may be told to compute: no sample is taken."""

SESSION = _words(
    """
current_catalog current_connection_id current_database current_query current_query_id current_role
current_schema current_schemas current_setting current_transaction_id current_user get_block_size
getvariable in_search_path session_user txid_current user version write_log
"""
)
"""What asks for the session, its settings or the release of DuckDB; told apart in messages."""

UNCALLED = _words(
    """
current_catalog current_date current_role current_schema current_time current_timestamp
current_user localtime localtimestamp session_user user
"""
)
"""Names that stand for a function without brackets where no column has them."""

CLOCKS = _words(
    """
age ago current_localtime current_localtimestamp pg_conf_load_time pg_postmaster_start_time pg_sleep
"""
)
"""What is another value each time though DuckDB does not say so; ``age``, of one argument."""
