import { DefaultFailureConverter } from '@temporalio/common';

/** Failures without stack traces: histories are shown to people, and a trace names folders of the worker's machine. */
class FailureConverter extends DefaultFailureConverter {
  override errorToFailure(...args: Parameters<DefaultFailureConverter['errorToFailure']>) {
    return { ...super.errorToFailure(...args), stackTrace: '' };
  }
}

/** The name that Temporal looks for. */
export const failureConverter = new FailureConverter();
