"""What must hold on every `ep` line of the metrics: the ledger's identities."""

from workplace import ALIGNMENT, EXPERTS, MICRO, SEQ, TOP_K

MASS_TOLERANCE = 1e-5  # f32 gates of a token sum to 1 up to rounding


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def check_ep_line(test, line, ep, dp):
    """`test`: the test case that asserts; ranks = ep x dp, every one with MICRO sequences."""
    per_rank = EXPERTS // ep
    tokens, capacity = MICRO * SEQ, line["capacity"]
    test.assertEqual(line["capacity_end"], [capacity] * dp)
    test.assertEqual(sum(line["recv_assignments"]), ep * dp * tokens * TOP_K)
    worst = 0
    for group in range(dp):
        counts, drops = line["expert_tokens"][group], line["dropped_by_expert"][group]
        test.assertEqual(sum(counts), ep * tokens * TOP_K)
        for index in range(ep):
            rank = group * ep + index
            mine = range(index * per_rank, (index + 1) * per_rank)
            received = sum(counts[e] for e in mine)
            dropped = sum(drops[e] for e in mine)
            demand = sum(round_up(counts[e], ALIGNMENT) for e in mine)
            slots = sum(round_up(counts[e] - drops[e], ALIGNMENT) for e in mine)
            test.assertEqual(line["recv_assignments"][rank], received)
            test.assertEqual(line["dropped_assignments"][rank], dropped)
            test.assertEqual(line["total_recv_tokens"][rank], demand)
            test.assertEqual(line["slot_counts_sum"][rank], slots)
            test.assertEqual(line["padding_slots"][rank], slots - received + dropped)
            test.assertLessEqual(slots, capacity)
            test.assertEqual(demand > capacity, dropped > 0)
            worst = max(worst, demand)
        ranks = slice(group * ep, (group + 1) * ep)
        test.assertEqual(sum(line["dropped_by_source"][ranks]), sum(drops))
    dropped = sum(line["dropped_assignments"])
    test.assertLessEqual(TOP_K * sum(line["fully_dropped_tokens"]), dropped)
    test.assertEqual(line["dropped_gate_mass"] > 0, dropped > 0)
    mass = ep * dp * tokens
    test.assertAlmostEqual(line["gate_mass"], mass, delta=MASS_TOLERANCE * mass)
    test.assertAlmostEqual(line["max_over_balanced"], worst / line["balanced_slots"])
    test.assertAlmostEqual(line["headroom"], 1 - worst / capacity)
    test.assertEqual(line["balanced_slots"],
                     per_rank * round_up(ep * tokens * TOP_K // EXPERTS, ALIGNMENT))
    test.assertEqual(line["worst_case_slots"], ep * tokens * TOP_K + per_rank * (ALIGNMENT - 1)
                     - (ep * tokens * TOP_K + per_rank * (ALIGNMENT - 1)) % ALIGNMENT)
    test.assertGreater(line["recv_buffer_bytes"], capacity * 16 * 4)
    test.assertGreater(line["capacity_sized_bytes"], line["recv_buffer_bytes"])
