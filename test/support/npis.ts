import { shareOf } from '../../deploy/local/sim/knowledge.ts';
import { withCheckDigit } from '../../deploy/local/sim/people.ts';

/** How the simulated RocketReach answers an NPI that is not magic. */
export type Ordinary = 'found' | 'found_later' | 'not_found';

/**
 * NPIs with a right check digit that the simulated RocketReach answers in one way: always the same ones. They are in
 * no NPPES file, so vendors that search by name cannot be asked about them.
 * @param from where to begin, up to nine digits: tests that share a database take NPIs far from each other's
 */
export function ordinaryNpis(kind: Ordinary, count: number, from = 0): string[] {
  const npis: string[] = [];
  for (let n = 100_000_000 + from; npis.length < count; n += 1) {
    const npi = withCheckDigit(n);
    if (kindOf(npi) === kind) npis.push(npi);
  }
  return npis;
}

function kindOf(npi: string): Ordinary {
  const share = shareOf(npi);
  if (share === 'slow') return 'found_later';
  return share === 'nobody' ? 'not_found' : 'found';
}
