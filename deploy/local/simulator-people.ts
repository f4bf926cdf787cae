import { createHash } from 'node:crypto';

// What the simulated vendor knows: people who do not exist, at domains nobody has registered.

/** An email as the simulated vendor knows it. */
export interface SimulatedEmail {
  readonly email: string;
  readonly type: 'professional' | 'personal';
  readonly smtpValid: 'valid' | 'accept-all';
  readonly grade: string;
}

/** What the vendor says of a lookup that is not `complete` yet. */
export type Unfinished = 'searching' | 'progress';

/** How the simulated vendor treats one NPI; latencies before the speed factor. */
export type Behaviour =
  | {
      readonly kind: 'profile';
      readonly latencyMs: number;
      readonly emails: readonly SimulatedEmail[];
      /** The NPI that the profile names. */
      readonly npi: string;
      /** What the lookup and the status checks after it say, in turn, before `complete`. */
      readonly unfinished: readonly Unfinished[];
    }
  | { readonly kind: 'refusal'; readonly latencyMs: number; readonly status: 404 | 451 | 500 }
  /** The first question gets 429 and `Retry-After: 1`, the next ones the profile. */
  | { readonly kind: 'limited_once'; readonly profile: Extract<Behaviour, { kind: 'profile' }> }
  | { readonly kind: 'hang' };

/** Domains of simulated practices; the local name server knows them, the internet does not. */
export const PRACTICE_DOMAINS = [
  'cedarvalleyclinic-sim.com',
  'harborfamilymedicine-sim.com',
  'northgatecardiology-sim.com',
  'lakesidepediatrics-sim.com',
  'summitorthopedics-sim.com',
  'riverbendhealth-sim.org',
  'mesaviewdermatology-sim.com',
  'oldtownprimarycare-sim.net',
] as const;

/** Free-mail domains of simulated personal addresses. */
export const FREE_MAIL_DOMAINS = [
  'gmail.com',
  'yahoo.com',
  'outlook.com',
  'icloud.com',
  'comcast.net',
] as const;

const FIRST_NAMES =
  `adaeze bram carlotta dimitri elspeth farid gwen hollis ines jorah kavya leif mirela nils odette
  priya quentin rosalind soren tamsin ulises vesna wilhelm xiomara yusuf zelda`.split(/\s+/);
const LAST_NAMES = `abernethy brightwater castellane drummond eskildsen fairweather goldfinch hartigan ibarra
  jankowski kingsolver lockhart montague nightingale okonjo pemberton quillfeather rasmussen silverstone
  thornbury underhill valcourt whitlock yarborough zimmerman`.split(/\s+/);

const MIN_LATENCY_MS = 200;
const LATENCY_RANGE_MS = 2000;

/** A valid work address. */
export function work(local: string, domain: string = PRACTICE_DOMAINS[0]): SimulatedEmail {
  return { email: `${local}@${domain}`, type: 'professional', smtpValid: 'valid', grade: 'A' };
}

/** A valid personal address, in a form that nobody is likely to have. */
export function home(npi: string, domain: string = FREE_MAIL_DOMAINS[0]): SimulatedEmail {
  return { email: `npi${npi}.sim@${domain}`, type: 'personal', smtpValid: 'valid', grade: 'A-' };
}

/**
 * An answer for any NPI, derived from its digits, so that a number behaves the same in every run: 60 % have a
 * professional address (a third of them a personal one too), 15 % only a personal one, 20 % are unknown, and 5 %
 * have a professional one that takes the vendor a while.
 * @param npi 10 digits
 */
export function ordinaryBehaviour(npi: string): Behaviour {
  const digest = createHash('sha256').update(npi).digest();
  const latencyMs = MIN_LATENCY_MS + (digest.readUInt16BE(0) / 0xffff) * LATENCY_RANGE_MS;
  const share = digest.readUInt16BE(2) % 100;
  if (share >= 80) return { kind: 'refusal', latencyMs, status: 404 };

  const local = `${pick(FIRST_NAMES, digest.readUInt8(4))}.${pick(LAST_NAMES, digest.readUInt8(5))}`;
  const atWork = work(local, pick(PRACTICE_DOMAINS, digest.readUInt8(6)));
  const atHome = home(npi, pick(FREE_MAIL_DOMAINS, digest.readUInt8(7)));
  const profile = { kind: 'profile', latencyMs, npi } as const;
  if (share >= 75) return { ...profile, emails: [atWork], unfinished: ['searching', 'progress'] };
  if (share >= 60) return { ...profile, emails: [atHome], unfinished: [] };
  return { ...profile, emails: share < 20 ? [atWork, atHome] : [atWork], unfinished: [] };
}

function pick(list: readonly string[], byte: number): string {
  return list[byte % list.length] ?? '';
}
