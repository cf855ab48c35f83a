#!/usr/bin/env bash
# Usage: scripts/mutate.sh [--list] [--keep] [NAME...]
#
# Do the tests notice when the library is wrong? Copies the tree, puts one fault at a time into the copy, builds it and
# runs the tests that should fail. A fault that no test notices has survived. Says which were caught; fails when one
# survived, or when one no longer fits the sources.
#
#   NAME     only these faults
#   --list   the names, and the files they are in
#   --keep   keeps the copy, and says where it is
#   --help   this text
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# fault NAME FILE SED [TESTS]: a fault is what SED does to FILE. TESTS: those that should notice, as a regular expression
# without test_; features, relations, relations_scores and weights when left out.
names=() files=() edits=() tests=()
fault() {
    names+=("$1") files+=("$2") edits+=("$3") tests+=("${4:-features|relations|relations_scores|weights}")
}

# Geometry.
fault window_left_one_less src/desc.c 's/? position - p->window_left : s->kv_len/? position - p->window_left + 1 : s->kv_len/'
fault window_left_one_more src/desc.c 's/? position - p->window_left : s->kv_len/? position - p->window_left - 1 : s->kv_len/'
fault window_right_one_less src/desc.c 's/end = position + p->window_right + 1;/end = position + p->window_right;/'
fault window_right_one_more src/desc.c 's/end = position + p->window_right + 1;/end = position + p->window_right + 2;/'
fault window_replaces_causal src/desc.c \
    's/if (desc->flags & ATTREE_CAUSAL)/if (desc->flags \& ATTREE_CAUSAL \&\& !(desc->flags \& ATTREE_USE_WINDOW))/'
fault kv_len_one_less src/desc.c 's/= p->kv_lens\[b\];/= p->kv_lens[b] - (p->kv_lens[b] > 0);/'
fault kv_len_one_more src/desc.c 's/= p->kv_lens\[b\];/= p->kv_lens[b] + (p->kv_lens[b] < p->kv_len);/'
fault kv_len_ignored_by_q_offset src/desc.c 's/s.q_offset = s.kv_len - s.q_len;/s.q_offset = p->kv_len - s.q_len;/'
fault q_offset_defaults_to_zero src/desc.c 's/s.q_offset = s.kv_len - s.q_len;/s.q_offset = 0;/'
fault q_offsets_ignored src/desc.c 's/s.q_offset = p->q_offsets\[b\];/s.q_offset = p->q_offset;/'
fault q_start_ignored_by_q src/block.c 's/tile->group \* p->group, tile->segment->sequence.q_start}/tile->group * p->group, 0}/'
fault q_start_ignored_by_pairs src/block.c 's/ + s->q_start \* p->query//'
fault q_start_ignored_by_o src/task.c 's/(q_start + i) \* p->o.token/i * p->o.token/'
fault q_start_ignored_by_lse src/task.c 's/(q_start + i) \* p->lse.token/i * p->lse.token/'
fault kv_start_ignored src/place.c 's/sequence->kv_start - p->shard.first/-p->shard.first/'
fault kv_start_ignored_by_pairs src/block.c 's/(s->kv_start + at\[1\])/at[1]/'
fault unseen_keys_not_hidden src/kernels/softmax.inc.c 's/^        hide_unseen(row);//'
fault keys_after_the_window_not_hidden src/kernels/softmax.inc.c 's/tail_hidden = vf_first(.*);/tail_hidden = s;/'
fault keys_before_the_window_not_hidden src/kernels/softmax.inc.c 's/vf_first(row->seen.from - j, hidden, tail_hidden)/tail_hidden/'

# Combining, sinks, finishing.
fault sinks_dropped src/task.c 's/if (w->args->sinks)$/if (false)/'
fault sink_of_another_group src/task.c 's/sinks\[tile->group \* group + /sinks[/'
fault u_not_rescaled_scalar src/contract.c 's/au\[e\] \* f.a)/au[e])/'
fault u_not_rescaled_vector src/kernels/combine.inc.c 's/vf_mul(vf_load(au + e), wide_fa)/vf_load(au + e)/'
fault l_not_rescaled_scalar src/contract.c 's/a->l\[r\] \* f.a)/a->l[r])/'
fault l_not_rescaled_vector src/kernels/combine.inc.c 's/a->l\[r\] \* f.a)/a->l[r])/'
fault right_l_not_rescaled_scalar src/contract.c 's/fmaf(b->l\[r\], f.b,/fmaf(b->l[r], 1.0f,/'
fault right_l_not_rescaled_vector src/kernels/combine.inc.c 's/fmaf(b->l\[r\], f.b,/fmaf(b->l[r], 1.0f,/'
fault lse_without_log src/contract.c 's/m + attree__logf(l)/m + l/'
fault lse_without_maximum src/contract.c 's/m + attree__logf(l)/attree__logf(l)/'
fault empty_rows_never_nan src/task.c 's/nan = p->empty_rows == ATTREE_EMPTY_NAN/nan = false/'
fault empty_rows_never_noted src/task.c 's/if (p->empty_rows == ATTREE_EMPTY_ERROR)/if (false)/'

# Several blocks at once.
fault blocks_at_once_scored_as_the_first src/kernels/interleave.inc.c 's/at + s, count - s);/at, count - s);/' kernels
fault blocks_at_once_seen_to_the_end src/kernels/interleave.inc.c 's/f->end\[r\] < ATTREE__BLOCK/false/' kernels
fault blocks_at_once_without_hidden_keys src/kernels/interleave.inc.c 's/if (strips\[n\].bundles\[0\].pierced)/if (false)/' kernels
fault narrow_keys_scored_out_of_order src/kernels/scores.inc.c 's/part.q + n \* BUNDLE_ROWS/part.q/' kernels
fault narrow_keys_packed_out_of_order src/kernels/pack.inc.c 's/(c + i \* lanes + n) \* SLAB/(c + n * VF_LANES + i) * SLAB/' kernels
fault keys_not_advanced src/kernels/pack.inc.c 's/^        fours->at\[i\] += .*/        (void)i;/' kernels
fault heads_in_turns_with_tiles_in_a_row src/tile.c 's/s->heads_together ? task % tiles : task \/ s->chunks/task \/ s->chunks/' bits
fault scales_of_a_page_too_many src/block.c 's/s.page_size - (s.first + j) % s.page_size : ATTREE__BLOCK/ATTREE__BLOCK : ATTREE__BLOCK/' paged
fault blocks_at_once_in_a_row src/task.c 's/combine_levels(w, tile, level, level + (int32_t)split);/combine_levels(w, tile, level, level + 1);/' bits

# Scores.
fault softcap_after_bias_scalar src/contract.c \
    '/if (t->softcap > 0.0f)/,+1d; /^    return s;/i if (t->softcap > 0.0f) s = t->softcap * attree__tanhf(s / t->softcap);'
fault softcap_after_bias_vector src/kernels/terms.inc.c \
    '/if (t->softcap > 0.0f)/,+1d; s/^        add_bias(&t->bias, row);/&\n    if (t->softcap > 0.0f)\n        cap_scores(t, row);/'
fault softcap_without_division_vector src/kernels/terms.inc.c 's/vf_tanh(vf_div(\(.*\), cap))/vf_tanh(\1)/'
fault alibi_sign_scalar src/contract.c 's/(float)(t->distance + j - i)/(float)(i - j - t->distance)/'
fault alibi_sign_vector src/kernels/terms.inc.c 's/vf_all(t->slopes\[row->head\])/vf_all(-t->slopes[row->head])/'
fault alibi_without_query_vector src/kernels/terms.inc.c 's/t->distance + j - row->query/t->distance + j/'
fault slopes_of_another_group src/block.c 's/args->alibi_slopes + at\[0\]/args->alibi_slopes/'
fault bias_of_minus_infinity_added_scalar src/contract.c 's/bias == -INFINITY ? -INFINITY : s + bias/s + bias/'
fault bias_of_minus_infinity_added_vector src/kernels/terms.inc.c 's/vf_replace_equal(sum, hidden, bias, hidden)/(sum)/'
fault bias_head_ignored src/kernels/terms.inc.c 's/ + row->head \* p->head;/;/'
fault mask_bits_reversed_scalar src/kernel.h 's/>> (n & 7) & 1/>> (7 - (n \& 7)) \& 1/'
fault mask_bits_reversed_vector src/kernels/terms.inc.c 's/bits >> i & 1u/bits >> (VF_LANES - 1 - i) \& 1u/'
fault mask_dropped_vector src/kernels/terms.inc.c 's/^        apply_mask(&t->mask, &row);/        (void)row;/'
fault score_tile_first_key_scalar src/contract.c 's/t->first_key + first,/t->first_key,/'
fault score_tile_first_key_vector src/kernels/terms.inc.c 's/= t->first_key + s->seen.from,/= t->first_key,/'
fault score_tile_head src/kernels/terms.inc.c 's/= t->first_head + row.head,/= t->first_head,/'
fault block_skip_taken_for_partial src/block.c \
    's/= args->block(&part, args->user);/= args->block(\&part, args->user) == ATTREE_BLOCK_FULL ? ATTREE_BLOCK_FULL : ATTREE_BLOCK_PARTIAL;/'
fault block_skip_ignored_for_some_rows src/block.c 's/if (kind == ATTREE_BLOCK_SKIP)$/if (false)/'
fault block_partial_ignored src/block.c 's/partial = partial || kind == ATTREE_BLOCK_PARTIAL;//'
fault block_full_ignored src/block.c 's/if (!partial)$/if (false)/'
fault weights_without_lse src/contract.c 's/attree__contract_weight(s - lse)/attree__contract_weight(s)/'

# Results beside o: weights, states, caches; whether a run is done.
fault weights_of_padding_not_written src/weights.c 's/p->ragged_kv ? s->kv_len : p->kv_len/s->kv_len/' weights
fault weights_beyond_a_ragged_entry src/weights.c 's/p->ragged_kv ? s->kv_len : p->kv_len/p->kv_len/' weights
fault zero_maximum_exported_with_its_sign src/task.c 's/states->m\[r\] + 0.0f;/states->m[r];/' edges
fault zero_maximum_merged_with_its_sign src/partial.c 's/= f.m + 0.0f;/= f.m;/' edges
fault unfinished_phases_pass src/progress.c 's/if (left > 0)/if (false)/' host_threads
fault runs_need_no_begin src/progress.c 's/ != run_mark(plan, workspace))/ == 1)/' host_threads
fault ended_runs_stay_open src/progress.c 's/atomic_store_explicit(&progress->begun, 0, memory_order_relaxed);//' host_threads
fault finite_numbers_become_infinite src/quant.c 's/from->count \&\& type != from->type;/0;/' append
fault values_are_checked_after_keys_are_written src/cache.c \
    's/for_all_rows(plan, &transfers\[i\], check_rows)/for_all_rows(plan, \&transfers[0], check_rows)/' append
fault surplus_workers_take_scratch src/task.c 's/if (place >= plan->workers).*/if (false)/' workers
fault one_thread_does_all src/run.c 's/if (plan->workers > 1)/if (false)/' workers

# Plans.
fault tiles_counted_before_rounding src/plan.c 's/s->tiles = ceil_div(s->group_rows, s->tile_rows);/s->tiles = tiles;/' plan
fault tiles_counted_before_rounding_and_run src/plan.c 's/s->tiles = ceil_div(s->group_rows, s->tile_rows);/s->tiles = tiles;/' workers
fault one_level_too_few src/plan.c 's/plan->levels = most_levels(plan, folds);/plan->levels = most_levels(plan, folds) - 1;/' plan
fault segments_unsorted src/order.c 's/^    if (sorted)/    if (true)/' plan
fault heads_never_in_turns src/plan.c 's/together = together_blocks(plan, s);/together = 0 * together_blocks(plan, s);/' plan
fault chunks_that_are_no_nodes src/plan.c 's/s->chunk_blocks \/= 2;/s->chunk_blocks -= 1;/' plan
fault widths_unlimited src/plan.c 's/if (problem->qk_width > WIDTH_MOST || problem->v_width > WIDTH_MOST)/if (false)/' plan
fault ranges_of_one_block src/plan.c 's/rows > folds \* few ? rows : folds \* few/rows/' plan
fault queries_packed_without_padding src/plan.c 's/round_up(rows, plan->kernels->bundle_rows) \* p->qk_width/rows * p->qk_width/' plan
fault states_numbered_from_zero src/plan.c 's/s->first_state = plan->states;/s->first_state = 0;/' plan

# Refusals.
fault kv_lens_beyond_room_accepted src/desc.c 's/desc->kv_lens\[b\] > room/desc->kv_lens[b] > room + 1/' arguments_desc
fault starts_may_decrease src/desc.c 's/if (starts\[b + 1\] < starts\[b\])/if (starts[b + 1] < 0)/' arguments_desc
fault starts_may_lose_tokens src/desc.c 's/if (starts\[batch\] != tokens)/if (starts[batch] > tokens)/' arguments_desc
fault sinks_may_be_infinite src/dtype.h 's/return bits == 0x7f800000u || /return /' arguments_memory
fault windows_may_be_negative src/desc.c 's/sides\[i\].given < -1/sides[i].given < -2/' arguments_desc
fault outputs_may_overlap_a_mask src/args.c 's/span_if(args->mask, p->mask.span)/(attree__span){0, 0}/' arguments_memory
fault finish_may_overlap_sinks src/args.c '/^static attree_status check_finished/,/^}/s/per_head(p, args->sinks), 4/(attree__span){0, 0}, 4/' partial
fault states_of_finish_may_overflow src/args.c '/^static attree_status check_finished/,/^}/s/if (p->states_span.high < 0)/if (false)/' partial
fault values_may_be_appended_to_inputs src/args.c 's/{"cache_v", t->cache_v, p->v_span, attree__dtype_alignment(p->v_type), true}/{"cache_v", t->cache_v, p->v_span, attree__dtype_alignment(p->v_type), false}/' append
fault scales_may_be_appended_to_inputs src/args.c 's/t->cache_k_scales), p->k_scales_span, 4, true/t->cache_k_scales), p->k_scales_span, 4, false/' append
fault cancel_not_heard src/progress.c 's/if (!args->control || /if (true || /' cancel
fault weights_of_keys_that_geometry_hides src/kernels/weights.inc.c 's/^    hide_unseen(row);/    (void)hide_unseen;/' weights_runs
fault weights_not_summed_in_order src/kernels/weights.inc.c 's/vf_add(vf_load(sums + j), vf_load(scores + j))/vf_load(scores + j)/' weights_runs
fault scan_skips_a_step_too_much src/kernels/scan.inc.c 's/        from = at_most(from + SCAN_STEP, to);/        from = at_most(from + 2 * SCAN_STEP, to);/' scan
fault scan_drops_a_mask_with_holes src/kernels/scan.inc.c 's/(word - each) & ~word & sign/0/' scan
fault scan_drops_a_bias src/kernels/scan.inc.c 's/: word & ~sign;/: 0;/' scan
fault scan_shares_masks_of_heads src/kernels/scan.inc.c 's/if (!shared || at.query/if (at.query/' scan
fault block_needs_no_score src/args.c 's/ && args->block && !args->score/ \&\& false/' arguments_memory

# What random problems notice.
fault mask_dropped_where_block_is_full src/block.c 's/^        t->score = NULL;/        t->score = NULL, t->mask.data = NULL;/' differential
fault block_told_of_whole_blocks src/block.c 's/left < ATTREE__BLOCK ? left : ATTREE__BLOCK, ranges/ATTREE__BLOCK, ranges/' differential
fault tiles_counted_before_rounding_drawn src/plan.c 's/s->tiles = ceil_div(s->group_rows, s->tile_rows);/s->tiles = tiles;/' differential
fault one_level_too_few_drawn src/plan.c 's/most_levels(plan, folds);/most_levels(plan, folds) - 1;/' differential
fault scratch_for_a_worker_less src/plan.c 's/total, plan->workers, (int64_t)scratch/total, plan->workers - (plan->workers > 2), (int64_t)scratch/' differential
fault any_empty_row_named src/progress.c 's/while (row_id < known &&/while (known == INT64_MAX \&\&/' differential
fault empty_row_query_and_head_swapped src/progress.c \
    's/row % p->q_len, row \/ p->q_len % p->q_heads,/row \/ p->q_len % p->q_heads, row % p->q_len,/' differential
fault unseen_chunks_not_cleared src/task.c 's/(s->chunks == 1 || visible.first < visible.end)/s->chunks == 1/' bits
fault mode_of_the_caller_not_restored src/task.c 's/^    attree__fpenv_leave(caller);/    (void)caller;/' differential
fault merged_nan_not_canonical src/partial.c 's/= attree__canonical(fmaf(right\[i\], f.b, left\[i\] \* f.a))/= fmaf(right[i], f.b, left[i] * f.a)/' differential
fault mask_bit_before_0_scalar src/kernel.h 's/bytes\[n >> 3\] >> (n & 7)/bytes[n \/ 8] >> (n \& 7)/' differential
fault mask_bit_before_0_vector src/kernels/terms.inc.c 's/first = n >> 3/first = n \/ 8/' differential
fault masked_keys_multiplied_by_zero src/kernels/interleave.inc.c 's/if (strips\[n\].bundles\[0\].pierced)/if (false)/' differential

keep='' list='' chosen=()
while (($#)); do
    case $1 in
    --list) list=yes ;;
    --keep) keep=yes ;;
    --help | -h) usage && exit ;;
    -*) fail "unknown argument $1; see --help" ;;
    *)
        [[ " ${names[*]} " == *" $1 "* ]] || fail "no fault is called $1; see --list"
        chosen+=("$1")
        ;;
    esac
    shift
done
if [[ $list ]]; then
    for n in "${!names[@]}"; do
        printf '%-40s %s\n' "${names[n]}" "${files[n]}"
    done
    exit
fi

copy=$(mktemp -d)
if [[ $keep ]]; then
    say "The copy is $copy."
else
    trap 'rm -rf "$copy"' EXIT
fi
(cd "$root" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy")

generator=()
if command -v ninja >/dev/null; then
    generator=(-G Ninja)
fi
# Less optimized: compiling is most of the time. The bits are the same.
quietly cmake -S "$copy" -B "$copy/build" -DATTREE_BENCHMARKS=OFF -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-O1 \
    "${generator[@]}"
all=$(printf '%s\n' "${tests[@]}" | tr '|' '\n' | sort -u | paste -s -d '|') # of the tests that should notice anything
read -ra targets <<<"test_${all//|/ test_}"
build_copy() { cmake --build "$copy/build" --parallel "$(nproc)" --target "${targets[@]}" >"$copy/log" 2>&1; }
# run_tests REGULAR_EXPRESSION
run_tests() {
    ctest --test-dir "$copy/build" -R "^test_($1)\$" --no-tests=error --stop-on-failure --timeout 60 >"$copy/log" 2>&1
}

say "Without a fault ..."
if ! build_copy || ! run_tests "$all"; then
    cat "$copy/log" >&2
    fail "the tests must pass before faults can show"
fi

caught=0 wrong=()
# try N: fault number N.
try() {
    local file=$copy/${files[$1]} verdict
    sed -i "${edits[$1]}" "$file"
    if cmp -s "$file" "$root/${files[$1]}"; then
        verdict='DOES NOT FIT the source any more'
    elif ! build_copy; then
        verdict='DOES NOT COMPILE'
    elif run_tests "${tests[$1]}"; then
        verdict=SURVIVED
    else
        verdict=caught
    fi
    say "$(printf '%-40s' "${names[$1]}") $verdict"
    if [[ $verdict == caught ]]; then
        caught=$((caught + 1))
    else
        wrong+=("${names[$1]}")
    fi
    cp "$root/${files[$1]}" "$file" # newer than what was built from the fault
}
# File by file, so that little is compiled twice.
while IFS=$'\t' read -r _ n; do
    if ((${#chosen[@]} == 0)) || [[ " ${chosen[*]} " == *" ${names[n]} "* ]]; then
        try "$n"
    fi
done < <(for n in "${!names[@]}"; do printf '%s\t%s\n' "${files[n]}" "$n"; done | sort)
say "$caught caught, ${#wrong[@]} not."
((${#wrong[@]} == 0)) || fail "the tests do not notice: ${wrong[*]}"
