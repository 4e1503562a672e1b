# what: a Java virtual machine: direct buffers, threads, compression, child processes
# needs: javac:default-jdk-headless
# loaded: java
# limit_s: 600
# prepare: yes

[ "$1" = prepare ] || exec java -Xmx256m -XX:MaxDirectMemorySize=256m -cp "$SCRATCH" Work
cat > Work.java <<'END'
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.*;

public class Work {
    static long work(int seed) throws Exception {
        long sum = 0;
        List<ByteBuffer> kept = new ArrayList<>();
        for (int i = 0; i < 150; i++) {
            ByteBuffer direct = ByteBuffer.allocateDirect(1000 + i * 997);
            while (direct.hasRemaining()) direct.put((byte) (direct.position() * 31 + seed));
            direct.flip();
            CRC32 crc = new CRC32();
            crc.update(direct.duplicate());
            sum = sum * 31 + crc.getValue();
            if (i % 3 == 0) kept.add(direct);
            Deflater deflater = new Deflater();
            deflater.setInput(new byte[20000]);
            deflater.finish();
            sum += deflater.deflate(new byte[30000]);
            deflater.end();
        }
        for (ByteBuffer buffer : kept) sum += buffer.get(buffer.limit() - 1);
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        List<Future<Long>> all = new ArrayList<>();
        for (int i = 0; i < 16; i++) {
            int seed = i;
            all.add(pool.submit(() -> work(seed)));
        }
        for (Future<Long> one : all) System.out.println(one.get());
        pool.shutdown();
        int code = 0;
        for (int i = 0; i < 5; i++) code += new ProcessBuilder("sh", "-c", "exit 3").start().waitFor();
        System.out.println(code);
    }
}
END
javac -d "$SCRATCH" Work.java
