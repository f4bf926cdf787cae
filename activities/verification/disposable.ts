import { holdsDomain } from './domain.ts';
import { readList } from './list.ts';

const DISPOSABLE = readList('disposable');

/** Whether mailboxes of this domain, or of a parent of it, are meant to be thrown away. */
export function isDisposable(domain: string): boolean {
  return holdsDomain(DISPOSABLE, domain);
}
