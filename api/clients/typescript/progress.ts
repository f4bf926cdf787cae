import type { Progress } from './index.ts';

/**
 * Shows the progress on stderr. A terminal gets one line that is overwritten every second. A file
 * or pipe gets a new line every 10 seconds.
 */
export class ProgressBar {
  readonly #isTerminal = process.stderr.isTTY;
  readonly #begun = Date.now();
  readonly #timer = setInterval(() => this.#draw(), this.#isTerminal ? 1000 : 10_000);
  #text = '';

  show({ total, earlier, completed, not_found, failed, creditsUsed }: Progress): void {
    const done = completed + not_found + failed;
    const perMinute = (60_000 * (done - earlier)) / (Date.now() - this.#begun);
    const left =
      perMinute > 0 ? `, ${Math.ceil((total - done) / perMinute)} min left` : '';
    const filled = '#'.repeat((20 * done) / total);
    const pace = `[${filled.padEnd(20, '.')}] ${done} of ${total}, ${Math.round(perMinute)} a minute`;
    const found = `${completed} found, ${not_found} not, ${failed} failed`;
    this.#text = `${pace}${left}: ${found}, ${count(creditsUsed, 'credit')}`;
  }

  end(): void {
    clearInterval(this.#timer);
    this.#draw();
    if (this.#isTerminal && this.#text !== '') process.stderr.write('\n');
  }

  #draw(): void {
    if (this.#text === '') return;
    if (!this.#isTerminal) {
      process.stderr.write(`${this.#text}\n`);
      return;
    }
    const shown = this.#text.slice(0, process.stderr.columns - 1);
    process.stderr.write(`\r${shown}\x1b[K`);
  }
}

export function count(number: number, what: string): string {
  return `${number} ${what}${number === 1 ? '' : 's'}`;
}
