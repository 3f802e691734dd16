package peers;

import java.util.Arrays;
import java.util.function.ObjLongConsumer;

/**
 * Counts words that are still characters of a line: an open-addressing table over a shared array of
 * characters. A word becomes a String once, when it is first seen, and a known word costs no object.
 */
final class WordTable {
    private static final int LARGEST = 1 << 20;

    private char[] text = new char[1 << 16];
    private int textEnd;
    private int[] starts = new int[1 << 13];
    private int[] hashes = new int[1 << 13];
    private long[] counts = new long[1 << 13];
    private String[] words = new String[1 << 13];
    private int[] slots = empty(1 << 14);
    private int size;
    private char[] line = new char[1 << 10];

    /** Counts the words of a line, which are parted by one space or several. */
    void addLine(String value) {
        int length = value.length();
        if (line.length < length + 1) {
            line = new char[2 * length];
        }
        char[] chars = line;
        value.getChars(0, length, chars, 0);
        chars[length] = ' ';
        int from = 0;
        int hash = 0;
        for (int at = 0; at <= length; at++) {
            char c = chars[at];
            if (c != ' ') {
                hash = 31 * hash + c;
                continue;
            }
            if (at > from) {
                add(chars, from, at, hash);
            }
            from = at + 1;
            hash = 0;
        }
    }

    /** Hands over every count above zero, and begins again at zero. */
    void drain(ObjLongConsumer<String> consumer) {
        for (int word = 0; word < size; word++) {
            if (counts[word] != 0) {
                consumer.accept(words[word], counts[word]);
                counts[word] = 0;
            }
        }
        if (size > LARGEST) {
            size = 0;
            textEnd = 0;
            Arrays.fill(words, null);
            Arrays.fill(slots, -1);
        }
    }

    /** Whether memory asks for a drain before the next checkpoint does. */
    boolean isFull() {
        return size > LARGEST;
    }

    private void add(char[] chars, int from, int to, int hash) {
        int mask = slots.length - 1;
        int slot = spread(hash) & mask;
        int length = to - from;
        while (true) {
            int word = slots[slot];
            if (word < 0) {
                slots[slot] = size;
                insert(chars, from, length, hash);
                return;
            }
            if (hashes[word] == hash && starts[word + 1] - starts[word] == length) {
                int start = starts[word];
                if (Arrays.equals(text, start, start + length, chars, from, to)) {
                    counts[word]++;
                    return;
                }
            }
            slot = (slot + 1) & mask;
        }
    }

    private void insert(char[] chars, int from, int length, int hash) {
        if (textEnd + length > text.length) {
            text = Arrays.copyOf(text, Math.max(2 * text.length, textEnd + length));
        }
        System.arraycopy(chars, from, text, textEnd, length);
        int word = size++;
        starts[word] = textEnd;
        textEnd += length;
        starts[word + 1] = textEnd;
        hashes[word] = hash;
        counts[word] = 1;
        words[word] = new String(chars, from, length);
        if (size + 1 == starts.length) {
            grow();
        }
    }

    private void grow() {
        int capacity = 2 * starts.length;
        starts = Arrays.copyOf(starts, capacity);
        hashes = Arrays.copyOf(hashes, capacity);
        counts = Arrays.copyOf(counts, capacity);
        words = Arrays.copyOf(words, capacity);
        slots = empty(2 * capacity);
        for (int word = 0; word < size; word++) {
            int slot = spread(hashes[word]) & (slots.length - 1);
            while (slots[slot] >= 0) {
                slot = (slot + 1) & (slots.length - 1);
            }
            slots[slot] = word;
        }
    }

    private static int spread(int hash) {
        int mixed = hash * 0x9E3779B9;
        return mixed ^ (mixed >>> 15);
    }

    private static int[] empty(int length) {
        int[] slots = new int[length];
        Arrays.fill(slots, -1);
        return slots;
    }
}
