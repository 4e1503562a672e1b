# what: Ruby: threads, forks and garbage collections
# needs: ruby:ruby
# loaded: ruby
# limit_s: 600

cat > work.rb <<'END'
def work(seed)
  table = {}
  30_000.times { |i| table["key#{i * seed}"] = "x" * (i % 200) }
  table.delete_if { |_, text| text.size.odd? }
  GC.start
  table.values.sum(&:size) + Marshal.load(Marshal.dump(table)).size
end
threads = (1..6).map { |seed| Thread.new { work(seed) } }
readers = (1..6).map do |seed|
  reader, writer = IO.pipe
  fork { reader.close; writer.puts work(seed); writer.close; GC.compact if GC.respond_to?(:compact); exit! 0 }
  writer.close
  reader
end
puts threads.map(&:value).join(" ")
puts readers.map { |reader| reader.read.strip }.join(" ")
Process.waitall.each { |_, status| puts status.exitstatus }
big = (1..200).map { |i| ("a".."z").to_a.join * (i * 100) }
puts big.join.scan(/xyz/).size
END
ruby work.rb
