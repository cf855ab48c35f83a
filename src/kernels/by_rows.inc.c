/* CALL(rows) with the number of rows as a constant, 1 <= rows <= BUNDLE_ROWS. Cases above never happen; they name a
 * number that exists. */
switch (rows) {
case 1: CALL(1); break;
case 2: CALL(2); break;
case 3: CALL(3); break;
case 4: CALL(4); break;
case 5: CALL(5); break;
case 6: CALL(6); break;
case 7: CALL(BUNDLE_ROWS < 7 ? 1 : 7); break;
case 8: CALL(BUNDLE_ROWS < 8 ? 1 : 8); break;
case 9: CALL(BUNDLE_ROWS < 9 ? 1 : 9); break;
case 10: CALL(BUNDLE_ROWS < 10 ? 1 : 10); break;
case 11: CALL(BUNDLE_ROWS < 11 ? 1 : 11); break;
default: CALL(BUNDLE_ROWS); break;
}
#undef CALL
