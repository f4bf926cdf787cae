import { HUNTER_VERIFIER } from './hunter.ts';
import { NEVERBOUNCE } from './neverbounce.ts';
import { REACHER } from './reacher.ts';
import { ZEROBOUNCE } from './zerobounce.ts';

/** Every verifier, in the order in which they are asked if the configuration names no other. */
export const VERIFIERS = {
  reacher: REACHER,
  zerobounce: ZEROBOUNCE,
  neverbounce: NEVERBOUNCE,
  'hunter-verifier': HUNTER_VERIFIER,
} as const;

export type VerifierId = keyof typeof VERIFIERS;
export const VERIFIER_IDS = Object.keys(VERIFIERS) as VerifierId[];
