// Ring keeps the last items, at most as many as its capacity.
export class Ring<T> {
  private items: T[] = [];
  private head = 0;

  constructor(readonly capacity: number) {}

  get length(): number {
    return this.items.length;
  }

  push(item: T): void {
    if (this.items.length < this.capacity) {
      this.items.push(item);
      return;
    }
    this.items[this.head] = item;
    this.head = (this.head + 1) % this.capacity;
  }

  // newest returns an item by its age: 0 is the one pushed last.
  newest(age: number): T | undefined {
    const n = this.items.length;
    if (age < 0 || age >= n) return undefined;
    return this.items[(this.head + n - 1 - age) % n];
  }

  // copy returns all, the newest first.
  copy(): T[] {
    const all: T[] = new Array(this.items.length);
    for (let i = 0; i < all.length; i++) all[i] = this.newest(i) as T;
    return all;
  }

  clear(): void {
    this.items = [];
    this.head = 0;
  }
}
