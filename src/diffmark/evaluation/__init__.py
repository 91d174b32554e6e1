"""Evaluation: pictures made once, figures of merit, one small experiment a table or figure of the paper."""
