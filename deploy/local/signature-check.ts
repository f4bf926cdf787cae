import { createPublicKey, type KeyObject, timingSafeEqual, verify } from 'node:crypto';
import { type Signable, sign, signedContent } from '../../activities/webhooks/signature.ts';
import { alterationOf } from './body-alterations.ts';

/** One delivery as a receiver has it. */
export interface Captured {
  /** By lower-case name. */
  readonly headers: Readonly<Record<string, string | undefined>>;
  readonly body: Buffer;
}

/** What the receiver knows of the sender: at least one of the two. */
export interface Trusted {
  /** `whsec_…` */
  readonly secret: string | null;
  readonly publicKey: KeyObject | null;
}

/**
 * Whether a delivery's signature is right, and what is wrong with it.
 * - `stale`: the signature matches, but the delivery is older than receivers may accept, or from the future (below 0)
 * - `altered`: the body is known not to be the one that was signed; `how` is the rest of "the body …"
 * - `wrong_secret`: the body is the one that was signed, for its `v1a` signature matches; the secret is another one
 * - `unmatched`: nothing matches, and nothing shows that the body was altered: most likely another secret
 */
export type Verdict =
  | { readonly kind: 'right'; readonly by: 'v1' | 'v1a' }
  | { readonly kind: 'missing_header'; readonly name: string }
  | { readonly kind: 'malformed_header'; readonly name: string; readonly expected: string }
  | { readonly kind: 'other_version'; readonly present: 'v1' | 'v1a' }
  | { readonly kind: 'stale'; readonly ageSeconds: number }
  | { readonly kind: 'altered'; readonly how: string }
  | { readonly kind: 'wrong_secret' }
  | { readonly kind: 'unmatched' };

/** Standard Webhooks leaves it to receivers; its libraries accept five minutes to either side. */
export const TOLERANCE_SECONDS = 300;

const CHANGED =
  'fits neither the secret nor the public key: a value in it, or the id or the timestamp, was changed';
const HEADERS = ['webhook-id', 'webhook-timestamp', 'webhook-signature'] as const;
const TOKEN = { v1: /^v1,([A-Za-z0-9+/]{43}=)$/, v1a: /^v1a,([A-Za-z0-9+/]{86}==)$/ };

/**
 * Checks one delivery as Standard Webhooks 1.0 asks receivers to, and looks for the reason where it is not right.
 * @param at when it arrived
 */
export function checkSignature(captured: Captured, trusted: Trusted, at: Date): Verdict {
  const { headers } = captured;
  for (const name of HEADERS) if (!headers[name]) return { kind: 'missing_header', name };
  const [id = '', timestamp = '', signature = ''] = HEADERS.map((name) => headers[name]);
  if (!/^[0-9]{1,12}$/.test(timestamp)) {
    return malformed('webhook-timestamp', 'whole seconds since 1970 in digits');
  }
  const tokens = signature.split(' ');
  const [v1, v1a] = [found(tokens, TOKEN.v1), found(tokens, TOKEN.v1a)];
  if (v1.length + v1a.length === 0) {
    return malformed(
      'webhook-signature',
      '"v1," and 44 characters of base64, or several such with spaces between',
    );
  }
  if (trusted.publicKey === null && v1.length === 0) return { kind: 'other_version', present: 'v1a' };
  if (trusted.secret === null && v1a.length === 0) return { kind: 'other_version', present: 'v1' };

  const matches = (body: string) =>
    matching({ id, timestamp: Number(timestamp), body }, trusted, { v1, v1a });
  const by = matches(captured.body.toString('utf8'));
  if (by === null) {
    const how = alterationOf(captured, (body) => matches(body) !== null);
    if (how !== null) return { kind: 'altered', how };
    // Two keys that have nothing to do with each other are hardly both wrong.
    const isTwice = trusted.secret !== null && trusted.publicKey !== null && v1.length > 0 && v1a.length > 0;
    return isTwice ? { kind: 'altered', how: CHANGED } : { kind: 'unmatched' };
  }
  if (by === 'v1a' && trusted.secret !== null && v1.length > 0) return { kind: 'wrong_secret' };
  const ageSeconds = Math.floor(at.getTime() / 1000) - Number(timestamp);
  return Math.abs(ageSeconds) > TOLERANCE_SECONDS ? { kind: 'stale', ageSeconds } : { kind: 'right', by };
}

/**
 * @param text `whpk_` + base64 of the 32 bytes of an ed25519 key
 * @returns null for a text of any other form
 */
export function parsePublicKey(text: string): KeyObject | null {
  const encoded = /^whpk_([A-Za-z0-9+/]{43}=)$/.exec(text)?.[1];
  if (encoded === undefined) return null;
  const x = Buffer.from(encoded, 'base64').toString('base64url');
  return createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' });
}

function malformed(name: string, expected: string): Verdict {
  return { kind: 'malformed_header', name, expected };
}

/** The signatures of one version among those of the header. */
function found(tokens: readonly string[], form: RegExp): Buffer[] {
  return tokens.flatMap((token) => {
    const encoded = form.exec(token)?.[1];
    return encoded === undefined ? [] : [Buffer.from(encoded, 'base64')];
  });
}

function matching(
  signable: Signable,
  { secret, publicKey }: Trusted,
  { v1, v1a }: { readonly v1: readonly Buffer[]; readonly v1a: readonly Buffer[] },
): 'v1' | 'v1a' | null {
  if (secret !== null) {
    const [expected = Buffer.alloc(0)] = found([sign({ ...signable, secrets: [secret] })], TOKEN.v1);
    if (v1.some((sent) => timingSafeEqual(sent, expected))) return 'v1';
  }
  if (publicKey === null) return null;
  return v1a.some((sent) => verify(null, signedContent(signable), publicKey, sent)) ? 'v1a' : null;
}
