<?php
// Strings, arrays, sorting, and two extensions.
$words = [];
for ($n = 0; $n < 20000; $n++) $words[md5((string) $n)] = str_repeat('w', $n % 200);
ksort($words);
$length = array_sum(array_map('strlen', $words));
$digits = count(array_filter(array_map('strval', range(0, 999)), 'ctype_digit'));
$tokens = count(token_get_all('<?php ' . str_repeat('$a = f($b, 1); ', 500)));
$sum = 0;
preg_match_all('/\d+/', implode(' ', range(1, 2000)), $found);
foreach ($found[0] as $number) $sum += (int) $number;
$answer = "$length $digits $tokens $sum";
echo $answer === '1990000 1000 6501 2001000' ? "ok\n" : "FAIL: $answer\n";
