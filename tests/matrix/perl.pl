# Hashes, regular expressions, sorting, closures and children.
use strict;
use warnings;
my %count;
$count{ $_ % 997 } .= "<$_>" for 1 .. 20_000;
my $longest = (sort { length $count{$b} <=> length $count{$a} || $a <=> $b } keys %count)[0];
my $text = join ',', map { $_ * 3 } 1 .. 5_000;
my $sum = 0;
$sum += $1 while $text =~ /(\d+)/g;
my @children = map { my $n = $_; my $said = `echo $n`; chomp $said; $said } 1 .. 10;
pipe my $in, my $out or die;
my $child = fork // die;
if (!$child) { my @more = map { "x$_" } 1 .. 10_000; print $out scalar @more; exit 0 }
close $out;
my $said = <$in>;
waitpid $child, 0;
my $answer = join ' ', scalar(keys %count), $longest, $sum, "@children", $said, $?;
my $expected = '997 30 37507500 1 2 3 4 5 6 7 8 9 10 10000 0';
print $answer eq $expected ? "ok\n" : "FAIL: $answer\n";
exit($answer ne $expected);
