import { HUNTER_VERIFIER } from './hunter.ts';
import { NEVERBOUNCE } from './neverbounce.ts';
import { REACHER } from './reacher.ts';
import { ZEROBOUNCE } from './zerobounce.ts';

/** The verifiers in their default call order. The configuration can set another order. */
export const VERIFIERS = {
  reacher: REACHER,
  zerobounce: ZEROBOUNCE,
  neverbounce: NEVERBOUNCE,
  'hunter-verifier': HUNTER_VERIFIER,
} as const;

export type VerifierId = keyof typeof VERIFIERS;
export const VERIFIER_IDS = Object.keys(VERIFIERS) as VerifierId[];
